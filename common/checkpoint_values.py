"""What the weights of a checkpoint hold, read without torch: for who must know before any process is started.

The engine looks at what it loads by itself, on its device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from io import FileIO

import numpy as np
import numpy.typing as npt

from common.checkpoint import FLOAT_BYTES, CheckpointIndex, TensorEntry
from common.errors import CheckpointError

_EXPONENTS = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""How a number's bits are read as an integer, and its exponent's: all of these are set in NaN and infinities alone."""

_CHUNK_BYTES = 256 << 10
"""Read at once: a core's own cache holds it."""


def not_finite(entry: TensorEntry, name: str) -> CheckpointError:
    """What is said of a tensor of whose numbers one is not."""
    return CheckpointError(f"{entry.path}: tensor {name} holds NaN or infinity")


def check_values(index: CheckpointIndex, *, on_tensor: Callable[[int], None] = lambda _: None) -> None:
    """Read every tensor once; `on_tensor` is told how many have been read.

    Raises `CheckpointError` naming file and tensor when one is not finite, or cannot be read any more.
    """
    buffer = np.empty(_CHUNK_BYTES, dtype=np.uint8)
    for number, (name, entry) in enumerate(index.tensors.items(), start=1):
        try:
            with entry.path.open("rb", buffering=0) as file:
                finite = _is_finite(file, entry, buffer)
        except OSError as error:
            raise CheckpointError(f"{entry.path}: tensor {name}: {error.strerror or error}") from None
        if not finite:
            raise not_finite(entry, name)
        on_tensor(number)


def _is_finite(file: FileIO, entry: TensorEntry, buffer: npt.NDArray[np.uint8]) -> bool:
    kind, exponent = _EXPONENTS[entry.dtype]
    left_bytes = math.prod(entry.shape) * FLOAT_BYTES[entry.dtype]
    file.seek(entry.offset_bytes)
    while left_bytes:
        chunk = buffer[: min(left_bytes, _CHUNK_BYTES)]
        if _fill(file, chunk) < len(chunk):
            raise OSError("the file has become shorter")
        bits = chunk.view(kind)
        np.bitwise_and(bits, exponent, out=bits)
        if bits.max() == exponent:
            return False
        left_bytes -= len(chunk)
    return True


def _fill(file: FileIO, chunk: npt.NDArray[np.uint8]) -> int:
    """Bytes of `chunk` that the file has filled: all, unless it ends."""
    view, count = chunk.data, 0
    while count < len(view) and (more := file.readinto(view[count:])):
        count += more
    return count
