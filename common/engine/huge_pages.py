"""Memory pages of 2 MiB instead of 4 KiB, where the system gives them."""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor


def ask_for_huge_pages(tensor: Tensor) -> None:
    """Let the memory of a CPU tensor that nobody has touched yet come in huge pages; without them all works as well.

    Everything that walks over a pool of K/V in small pieces pays for finding each memory page.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = tensor.data_ptr() + tensor.nbytes - start
    if length > 0:
        # Whether that helps is up to the kernel (/sys/kernel/mm/transparent_hugepage): its answer is not looked at.
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_HUGEPAGE))
