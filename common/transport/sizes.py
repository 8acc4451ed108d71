"""Both sides of a read must mean the same number of bytes before one of them moves."""

from __future__ import annotations

from common.errors import Reason, WireError
from common.transport.base import KvSink
from common.transport.byte_run import ByteRun
from common.transport.memory_run import MemoryRun


def agreed_first_layer(sink: KvSink, *, layers: int, layer_bytes: int) -> ByteRun:
    """The sink's layer 0, once the owner's `layers` and bytes per layer equal the sink's and are not nothing.

    Raises `WireError` LAYOUT_MISMATCH otherwise.
    """
    _check_any(sink, layers, layer_bytes)
    first = ByteRun(sink.views(0))
    _check_same(sink, first.size_bytes, layers, layer_bytes)
    return first


def agreed_first_memory(sink: KvSink, *, layers: int, layer_bytes: int) -> MemoryRun:
    """`agreed_first_layer` of a sink that is `in_host_memory`."""
    _check_any(sink, layers, layer_bytes)
    first = sink.memory(0)
    _check_same(sink, first.size_bytes, layers, layer_bytes)
    return first


def _check_any(sink: KvSink, layers: int, layer_bytes: int) -> None:
    if min(layers, sink.layers, layer_bytes) < 1:
        raise WireError(Reason.LAYOUT_MISMATCH, "there is no K/V to read")


def _check_same(sink: KvSink, sink_layer_bytes: int, layers: int, layer_bytes: int) -> None:
    if (layers, layer_bytes) != (sink.layers, sink_layer_bytes):
        raise WireError(
            Reason.LAYOUT_MISMATCH,
            f"owner has {layers} layers of {layer_bytes} bytes, reader {sink.layers} of {sink_layer_bytes}",
        )
