"""One-sided reads by UCX: a reader copies out of its peer's memory, and the peer does nothing.

UCXX has these functions of UCP for C++ only, so they are called here by ctypes. UCP's C interface holds still: every
struct says by a mask which of its fields count.

They are used where UCX has cross memory attach (CMA) and nothing but shared memory beside it: there a read is a system
call that copies once, and a key names a process, not a range, so that one key serves all that the owner lends. What
other networks take for a key names memory that is registered first, all pages of a pool; and an address that is wrong
ends the *owner* over TCP (a segmentation fault, tried). Their endpoints exchange messages.

Measured with UCX 1.21: 16 MiB in pieces of 256 KiB take 3.4 ms, where messages of 256 KiB take 3.9 to 4.3 and one of
16 MiB 3.3 to 3.6. A read costs 8 us for 16 KiB. A stopped owner is read all the same; a wrong address, or an owner that
is dead, fails the read at once, and the endpoint with it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Iterator
from typing import Any

from common.errors import Reason, WireError
from common.transport.memory_run import Spans

_ONE_SIDED = frozenset({"cma"})
_BESIDE = frozenset({"sysv", "posix", "self", "tcp"})
"""Transports that move no large bytes by themselves where CMA is."""

_KEY_BYTES = 4096
_IN_PROGRESS = 1
_MAX_TRANSPORTS = 32


class _MapParams(ctypes.Structure):
    """`ucp_mem_map_params_t`."""

    ADDRESS_AND_LENGTH = 0b11
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("prot", ctypes.c_uint),
        ("memory_type", ctypes.c_int),
        ("exported_memh_buffer", ctypes.c_void_p),
    )


class _Transport(ctypes.Structure):
    """`ucp_transport_entry_t`."""

    _fields_ = (("transport_name", ctypes.c_char_p), ("device_name", ctypes.c_char_p))


class _EndpointAttributes(ctypes.Structure):
    """`ucp_ep_attr_t`; a `struct sockaddr_storage` has 128 bytes."""

    TRANSPORTS = 0b1000
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", ctypes.c_uint64 * 16),
        ("remote_sockaddr", ctypes.c_uint64 * 16),
        ("entries", ctypes.POINTER(_Transport)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
        ("user_data", ctypes.c_void_p),
    )


class _RequestParams(ctypes.Structure):
    """`ucp_request_param_t`. All zero, it asks for contiguous bytes and no callback."""

    _fields_ = (
        ("op_attr_mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("request", ctypes.c_void_p),
        ("callback", ctypes.c_void_p),
        ("datatype", ctypes.c_uint64),
        ("user_data", ctypes.c_void_p),
        ("reply_buffer", ctypes.c_void_p),
        ("memory_type", ctypes.c_int),
        ("recv_info", ctypes.c_void_p),
        ("memh", ctypes.c_void_p),
    )


@functools.cache
def bind() -> Any:
    """UCP's library, the one that UCXX has loaded; its calls let other threads of the interpreter run."""
    ucp = ctypes.CDLL("libucp.so.0")
    handle, pointer = ctypes.c_void_p, ctypes.c_void_p
    ucp.ucp_mem_map.argtypes = (handle, pointer, pointer)
    ucp.ucp_mem_unmap.argtypes = (handle, handle)
    ucp.ucp_rkey_pack.argtypes = (handle, handle, pointer, pointer)
    ucp.ucp_rkey_buffer_release.argtypes = (pointer,)
    ucp.ucp_rkey_buffer_release.restype = None
    ucp.ucp_worker_query.argtypes = (handle, pointer)
    ucp.ucp_worker_release_address.argtypes = (handle, pointer)
    ucp.ucp_worker_release_address.restype = None
    ucp.ucp_ep_query.argtypes = (handle, pointer)
    ucp.ucp_ep_rkey_unpack.argtypes = (handle, ctypes.c_char_p, pointer)
    ucp.ucp_rkey_destroy.argtypes = (handle,)
    ucp.ucp_rkey_destroy.restype = None
    ucp.ucp_get_nbx.argtypes = (handle, pointer, ctypes.c_size_t, ctypes.c_uint64, handle, pointer)
    ucp.ucp_get_nbx.restype = ctypes.c_ssize_t  # a request, nothing when all is done, or a negative status
    ucp.ucp_worker_progress.argtypes = (handle,)
    ucp.ucp_request_check_status.argtypes = (pointer,)
    ucp.ucp_request_check_status.restype = ctypes.c_int8
    ucp.ucp_request_free.argtypes = (pointer,)
    ucp.ucp_request_free.restype = None
    return ucp


class OwnMemory:
    """What a peer needs to read from this process: `key`, good until `close`."""

    def __init__(self, context_handle: int) -> None:
        """Raises `OSError` when UCX refuses."""
        self._ucp = bind()
        self._context = context_handle
        self._page = ctypes.create_string_buffer(_KEY_BYTES)
        self._mapped = ctypes.c_void_p()
        params = _MapParams(_MapParams.ADDRESS_AND_LENGTH, ctypes.addressof(self._page), _KEY_BYTES)
        if self._ucp.ucp_mem_map(self._context, ctypes.byref(params), ctypes.byref(self._mapped)):
            raise OSError("UCX cannot map memory")
        self.key = self._pack()

    def _pack(self) -> bytes:
        buffer, size = ctypes.c_void_p(), ctypes.c_size_t()
        if self._ucp.ucp_rkey_pack(self._context, self._mapped, ctypes.byref(buffer), ctypes.byref(size)):
            raise OSError("UCX cannot make a key")
        try:
            return ctypes.string_at(buffer, size.value)
        finally:
            self._ucp.ucp_rkey_buffer_release(buffer)

    def close(self) -> None:
        """The key is of no use any more. Once."""
        self._ucp.ucp_mem_unmap(self._context, self._mapped)


class PeerMemory:
    """The memory of the process at the other end of one endpoint."""

    def __init__(self, *, worker_handle: int, endpoint_handle: int, key: bytes) -> None:
        """Raises `WireError` PEER_LOST when the key is not one of the peer's."""
        self._ucp = bind()
        self._worker = worker_handle
        self._endpoint = endpoint_handle
        self._params = _RequestParams()
        self._params_at = ctypes.byref(self._params)
        self._key = ctypes.c_void_p()
        if self._ucp.ucp_ep_rkey_unpack(endpoint_handle, key, ctypes.byref(self._key)):
            raise WireError(Reason.PEER_LOST, "the KV peer's memory cannot be reached")

    def read(self, local: Spans, remote: Spans) -> None:
        """Copy `remote`, in the peer's memory, to `local`, in this process'; as many bytes.

        Blocks for as long as that takes, nothing more: CMA neither waits for the peer, which may be stopped, nor comes
        back later. Raises `OSError` when the peer or the memory is gone.
        """
        moves = _moves(local.table.tolist(), remote.table.tolist())
        results = [self._begin(*move) for move in moves]
        # All have ended before the first failure is told: nothing is written afterwards.
        if any([self._end(result) for result in results]):
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    def _begin(self, target: int, source: int, length_bytes: int) -> int:
        """What UCX answers: a request, nothing when all is done, or a negative status."""
        result: int = self._ucp.ucp_get_nbx(self._endpoint, target, length_bytes, source, self._key, self._params_at)
        return result

    def _end(self, result: int) -> int:
        """Status of that read when it is over."""
        if result <= 0:
            return result
        ucp = self._ucp
        while (status := ucp.ucp_request_check_status(result)) == _IN_PROGRESS:
            ucp.ucp_worker_progress(self._worker)
        ucp.ucp_request_free(result)
        return int(status)

    def close(self) -> None:
        """Nothing is read any more. Once, before the endpoint is closed."""
        self._ucp.ucp_rkey_destroy(self._key)


def reads_memory(endpoint_handle: int) -> bool:
    """Whether reads through that endpoint are copies within this machine (CMA), and nothing else."""
    entries = (_Transport * _MAX_TRANSPORTS)()
    wanted = _EndpointAttributes(
        field_mask=_EndpointAttributes.TRANSPORTS,
        entries=entries,
        num_entries=_MAX_TRANSPORTS,
        entry_size=ctypes.sizeof(_Transport),
    )
    if bind().ucp_ep_query(endpoint_handle, ctypes.byref(wanted)):
        return False
    names = {entries[index].transport_name.decode() for index in range(wanted.num_entries)}
    return bool(names & _ONE_SIDED) and names <= _ONE_SIDED | _BESIDE


def _moves(targets: list[list[int]], sources: list[list[int]]) -> Iterator[tuple[int, int, int]]:
    """Target, source and bytes of the copies that bring `sources` to `targets` (addresses and lengths), in order."""
    left = iter(sources)
    source = available = 0
    for target, missing in targets:
        while missing:
            if not available:
                source, available = next(left)
            count = min(missing, available)
            yield target, source, count
            target, missing = target + count, missing - count
            source, available = source + count, available - count
