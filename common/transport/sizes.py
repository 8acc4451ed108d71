"""Both sides of a read must mean the same number of bytes before one of them moves."""

from __future__ import annotations

from common.errors import Reason, WireError
from common.transport.base import KvSink
from common.transport.byte_run import ByteRun


def agreed_first_layer(sink: KvSink, *, layers: int, layer_bytes: int) -> ByteRun:
    """The sink's layer 0, once the owner's `layers` and bytes per layer equal the sink's and are not nothing.

    Raises `WireError` LAYOUT_MISMATCH otherwise.
    """
    if min(layers, sink.layers, layer_bytes) < 1:
        raise WireError(Reason.LAYOUT_MISMATCH, "there is no K/V to read")
    first = ByteRun(sink.views(0))
    if (layers, layer_bytes) != (sink.layers, first.size_bytes):
        raise WireError(
            Reason.LAYOUT_MISMATCH,
            f"owner has {layers} layers of {layer_bytes} bytes, reader {sink.layers} of {first.size_bytes}",
        )
    return first
