"""Reading the memory of another process of this machine: who can be read at all, and the system call that does it."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.transport.memory_run import MAX_SPANS, Spans

ReadMemory = Callable[[int, Spans, Spans], None]
"""Copies the second spans, in the memory of the process of that number, to the first, in this one's; as many bytes.

Raises `OSError`, whatever was copied by then: ESRCH no such process, EPERM not allowed, EFAULT not all of it is memory,
ENOSYS not on this system.
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where process numbers mean the same: one boot of one kernel, and one PID namespace of it."""

    boot_id: str
    pid_namespace: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides whether two processes can share memory: which `segments` they find (those of one kernel, and one IPC
    namespace of it), and which `rights` they have there (of a user, in a PID namespace)."""

    segments: str
    rights: str

    def barred_from(self, other: Standing) -> bool:
        """Whether both find the same segments, and one may not open those of the other."""
        return self.segments == other.segments and self.rights != other.rights


def this_standing() -> Standing | None:
    """That of this process, now; None where the system does not say."""
    if (machine := this_machine()) is None:
        return None
    try:
        ipc, user = os.readlink("/proc/self/ns/ipc"), os.readlink("/proc/self/ns/user")
    except OSError:
        return None
    return Standing(segments=f"{machine.boot_id} {ipc}", rights=f"{machine.pid_namespace} {user} {os.geteuid()}")


@functools.cache
def this_machine() -> Machine | None:
    """Where this process runs; None where the system does not say."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Not what `children` would be in: a process stays in its own.
        return Machine(boot_id=boot_id, pid_namespace=os.readlink("/proc/self/ns/pid"))
    except OSError:
        return None


def read_memory(pid: int, local: Spans, remote: Spans) -> None:
    """`ReadMemory` by `process_vm_readv`, without the interpreter's lock. It reads stopped processes, too."""
    assert local.size_bytes == remote.size_bytes
    call = _process_vm_readv()
    done_bytes = 0
    while done_bytes < local.size_bytes:
        target = local.cut(done_bytes, local.size_bytes - done_bytes, MAX_SPANS)
        source = remote.cut(done_bytes, target.size_bytes, MAX_SPANS)
        # Both address tables are kept by these names until the call is over.
        count = call(pid, _address(target), len(target), _address(source), len(source), 0)
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        if count < min(target.size_bytes, source.size_bytes):
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        done_bytes += count


def _address(spans: Spans) -> int:
    return int(spans.table.ctypes.data)


@functools.cache
def _process_vm_readv() -> Callable[[int, int, int, int, int, int], int]:
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    vector = (ctypes.c_void_p, ctypes.c_ulong)
    call.argtypes = (ctypes.c_int, *vector, *vector, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    return call  # type: ignore[no-any-return]  # ctypes says nothing of its functions
