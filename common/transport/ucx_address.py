"""Addresses of a UCX worker: UCX takes the best way that an address leads by, so leaving ways out is how to choose.

Between users or PID namespaces of one machine UCX takes shared memory all the same if both find the same segments, and
fails or hangs there, for it may not open them (UCX 1.21). An address of the networks alone makes it go by these.
"""

from __future__ import annotations

import ctypes

from common.transport.ucx_memory import bind


class _WorkerAttributes(ctypes.Structure):
    """`ucp_worker_attr_t`."""

    ADDRESS, ADDRESS_FLAGS = 0b10, 0b100
    NETWORKS_ONLY = 1
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("thread_mode", ctypes.c_int),
        ("address_flags", ctypes.c_uint32),
        ("address", ctypes.c_void_p),
        ("address_length", ctypes.c_size_t),
        ("max_am_header", ctypes.c_size_t),
        ("name", ctypes.c_char * 32),
        ("max_debug_string", ctypes.c_size_t),
    )


def networks_address(worker_handle: int) -> bytes:
    """The worker's address by its networks alone; raises `OSError` when UCX has none."""
    ucp = bind()
    attributes = _WorkerAttributes(
        field_mask=_WorkerAttributes.ADDRESS | _WorkerAttributes.ADDRESS_FLAGS,
        address_flags=_WorkerAttributes.NETWORKS_ONLY,
    )
    if ucp.ucp_worker_query(worker_handle, ctypes.byref(attributes)):
        raise OSError("UCX does not say how its worker is reached")
    try:
        return ctypes.string_at(attributes.address, attributes.address_length)
    finally:
        ucp.ucp_worker_release_address(worker_handle, attributes.address)
