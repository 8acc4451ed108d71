"""Traces, metrics and logs of a service, over the OpenTelemetry API. Nothing is exported unless an endpoint is set."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from opentelemetry import context as otel_context
from opentelemetry import metrics, propagate, trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader as SdkMetricReader
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from common.errors import ConfigError
from common.metrics.readings import MetricReader, Reading

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Provider(Protocol):
    def shutdown(self) -> None: ...


_providers: list[_Provider] = []
_reader: MetricReader | None = None
_exports = False
_ids = RandomIdGenerator()


def setup_logging(level: str) -> None:
    """Send log records of `level` ("debug", "info", ...) and above to stderr."""
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=_LOG_FORMAT)


def setup_telemetry(service_name: str, otlp_endpoint: str) -> None:
    """Give this process real trace ids and instruments that count, and export both to the collector at
    `otlp_endpoint` (host:port) unless empty.

    Call once, early; later calls change nothing. Raises ConfigError when an endpoint is set and the exporter package
    is not installed.
    """
    global _reader, _exports
    if _reader is not None:
        return
    # Processes of one service must be told apart, or a collector would take their totals for one that jumps.
    instance = f"{socket.gethostname()}:{os.getpid()}"
    resource = Resource.create(
        {"service.name": f"sangam-{service_name.replace('_', '-')}", "service.instance.id": instance}
    )
    tracer_provider = TracerProvider(resource=resource)
    reader = MetricReader()
    readers: list[SdkMetricReader] = [reader.sdk_reader]
    if otlp_endpoint:
        _exports = True
        span_exporter, metric_exporter = _make_exporters(otlp_endpoint)
        tracer_provider.add_span_processor(BatchSpanProcessor(span_exporter))
        readers.append(PeriodicExportingMetricReader(metric_exporter))
    # No exemplars: they cost each measurement a look at the running span, and nothing here reads them.
    meter_provider = MeterProvider(resource=resource, metric_readers=readers, exemplar_filter=AlwaysOffExemplarFilter())
    trace.set_tracer_provider(tracer_provider)
    metrics.set_meter_provider(meter_provider)
    _providers.extend((tracer_provider, meter_provider))
    _reader = reader


def metric_readings() -> list[Reading]:
    """What the instruments of this process have measured; nothing before `setup_telemetry`."""
    return [] if _reader is None else _reader.readings()


def shutdown_telemetry() -> None:
    """Flush what is not exported yet; the last step of a service's stop."""
    while _providers:
        _providers.pop().shutdown()


def tracer(name: str) -> trace.Tracer:
    """The tracer of module `name`."""
    return trace.get_tracer(name)


def current_trace_id() -> str:
    """Trace id of the running span (32 hex digits); a fresh random one outside any span."""
    span_context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(span_context.trace_id) if span_context.is_valid else secrets.token_hex(16)


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """gRPC metadata that carries the running span to the callee; empty outside any span."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple(carrier.items())


def remote_context(metadata: Iterable[tuple[str, str | bytes]] | None) -> otel_context.Context:
    """The trace context that a caller put in its call's metadata."""
    return propagate.extract({key: value for key, value in metadata or () if isinstance(value, str)})


def served_span(
    name: str, metadata: Iterable[tuple[str, str | bytes]] | None
) -> contextlib.AbstractContextManager[object]:
    """The span of a call that came with `metadata`, which runs in it.

    Where no span is exported none is made, for that takes longer than many a call: the caller's trace goes on by its
    ids alone, or one begins.
    """
    caller = remote_context(metadata)
    if _exports:
        return trace.get_tracer(__name__).start_as_current_span(name, context=caller, kind=trace.SpanKind.SERVER)
    return _TraceIds(caller)


class _TraceIds:
    """Within it, the trace is that of `caller`, or a new one."""

    def __init__(self, caller: otel_context.Context) -> None:
        ids = trace.get_current_span(caller).get_span_context()
        if not ids.is_valid:
            ids = trace.SpanContext(
                trace_id=_ids.generate_trace_id(),
                span_id=_ids.generate_span_id(),
                is_remote=False,
                # Somebody further on may export.
                trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
            )
        self._context = trace.set_span_in_context(trace.NonRecordingSpan(ids), caller)

    def __enter__(self) -> None:
        """The trace begins, or goes on."""
        self._token = otel_context.attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        otel_context.detach(self._token)


def _make_exporters(otlp_endpoint: str) -> tuple[Any, Any]:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        package = "opentelemetry-exporter-otlp-proto-grpc"
        raise ConfigError(f"--otlp-endpoint: needs the package {package}, which is not installed") from None
    return (
        OTLPSpanExporter(endpoint=otlp_endpoint, insecure=True),
        OTLPMetricExporter(endpoint=otlp_endpoint, insecure=True),
    )
