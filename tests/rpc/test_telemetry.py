"""Trace ids and their way between processes; no exporter unless asked for."""

from __future__ import annotations

import re
import subprocess
import sys

from common.telemetry import current_trace_id, remote_context, served_span, setup_telemetry, trace_metadata, tracer


def test_outside_a_span_the_id_is_random_and_nothing_travels():
    first, second = current_trace_id(), current_trace_id()
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first != second
    assert trace_metadata() == ()


def test_a_span_travels_through_metadata():
    setup_telemetry("test_rpc", "")
    with tracer("test").start_as_current_span("parent"):
        parent_id, metadata = current_trace_id(), trace_metadata()
    assert parent_id in dict(metadata)["traceparent"]
    with tracer("test").start_as_current_span("child", context=remote_context([*metadata, ("x-bin", b"\x00")])):
        assert current_trace_id() == parent_id
    assert current_trace_id() != parent_id


def test_a_call_is_served_within_its_callers_trace():
    setup_telemetry("test_rpc", "")
    with tracer("test").start_as_current_span("caller"):
        caller_id, metadata = current_trace_id(), trace_metadata()
    with served_span("Call", metadata):
        assert current_trace_id() == caller_id
        # And so are the calls that it makes in turn.
        assert caller_id in dict(trace_metadata())["traceparent"]
    assert current_trace_id() != caller_id


def test_a_call_without_a_trace_begins_one_that_its_own_calls_carry_on():
    with served_span("Call", ()):
        mine, metadata = current_trace_id(), trace_metadata()
        assert current_trace_id() == mine
    with served_span("Call", None):
        assert current_trace_id() != mine
    with served_span("Inner call", metadata):
        assert current_trace_id() == mine


def test_without_an_endpoint_no_exporter_and_no_torch_is_imported(python_path):
    code = """
import sys
from common.telemetry import setup_telemetry, shutdown_telemetry
import common.rpc.service, common.rpc.convert, common.rpc.healthcheck
setup_telemetry("kv_store", ""); shutdown_telemetry()
print([name for name in sys.modules if name.startswith(("opentelemetry.exporter", "torch"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_exporter_package_is_named(python_path):
    code = """
import sys
sys.modules["opentelemetry.exporter"] = None  # as if it were not installed
from common.errors import ConfigError
from common.telemetry import setup_telemetry
try:
    setup_telemetry("kv_store", "127.0.0.1:4317")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "opentelemetry-exporter-otlp-proto-grpc"
    assert done.stdout.strip() == f"--otlp-endpoint: needs the package {package}, which is not installed"
