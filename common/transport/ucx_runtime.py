"""UCXX as the data plane uses it: one UCX worker per transport, progressed by a thread, awaited on the event loop.

Written against UCXX's core classes (`ucxx._lib.libucxx`, the ones its own asyncio layer is made of): that layer keeps
one worker per process and one progress thread per loop, exchanges its own handshake, and drops cancelled requests.

Four facts, measured with UCXX 0.52 and UCX 1.21, shape everything above this module:

* Closing an endpoint that has error handling completes every receive on it, matched or not, within milliseconds, also
  when the peer is dead or stopped; after that UCX does not touch their buffers. Of the sends to a peer that was killed
  behind shared memory some stay incomplete for ever (3 kills of 24): nobody is left to read them.
* A message whose receive was cancelled stays in the worker, and UCXX's worker waits for it when it is destroyed: for
  ever, in a busy loop, if its sender has gone. A worker that may hold one is never destroyed, see `close`.
* Shared memory offers error handling only when told to (`*_ERROR_HANDLING`). Without it a peer that is killed while
  its memory is read takes this process with it (abort, exit code 134). With it a dead peer is merely not noticed.
* UCX lets a receiver read its sender's memory in one copy (cross memory attach) only where that can be revoked, and CMA
  says so only when told to (`CMA_MEMORY_INVALIDATE`). Else every 8 KiB go through a segment, copied in and out by two
  threads that spin: 64 MiB cost these 122 ms of CPU time, not 15. Nothing is really revoked, and need not be: it is the
  reader that reads, so nothing is written to memory that it has left, and what it reads too late it finds out by
  `Delivered` and checksum. A peer that is killed meanwhile ends the read with PEER_LOST.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from common.core.ids import WorkerLife
from common.errors import ConfigError, Reason, WireError
from common.racing import outlive
from common.transport.memory_proof import HeldProof
from common.transport.messages import UcxPeer
from common.transport.process_memory import Standing, this_standing
from common.transport.ucx_address import networks_address
from common.transport.ucx_memory import OwnMemory, PeerMemory, reads_memory

_log = logging.getLogger(__name__)
_SETTINGS = {
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_SYSV_ERROR_HANDLING": "y",
    "UCX_CMA_MEMORY_INVALIDATE": "y",
    # UCX reports a lost peer to its caller; the same on stderr is noise.
    "UCX_LOG_LEVEL": "fatal",
    "UCXX_LOG_LEVEL": "fatal",
}
"""Environment of UCX; it reads these of its transports from nowhere else. What the operator set stays."""

_PROGRESS_EPOLL_MS = 100
"""How long the progress thread sleeps at most. Events and new transfers wake it; of 1 ms an idle worker is awake 900
times a second (3.4 % of a core, 0.2 % now) and no transfer is quicker for it."""

_NOTIFIER_WAIT_NS = 100_000_000
_CLOSE_WAIT_NS = 200_000_000
_SEND_GRACE_S = 0.2
_RECEIVE_GRACE_S = 5.0
_WHOLE_TAG = (1 << 64) - 1


def ucx_installed() -> bool:
    """Whether UCXX can be imported; it is not (that takes most of a second)."""
    return importlib.util.find_spec("ucxx") is not None


class UcxTransfer:
    """One send or receive. It holds its buffer until UCX is done with it, whoever else lets go."""

    __slots__ = ("_buffer", "_future", "_request", "receives")

    def __init__(self, request: Any, buffer: Any, *, receives: bool) -> None:
        self.receives = receives
        self._request = request
        self._buffer = buffer
        self._future: asyncio.Future[Any] = request.future

    @property
    def done(self) -> bool:
        """Whether UCX touches the buffer no more, well or badly."""
        return self._future.done()

    async def wait(self) -> None:
        """Until the transfer is over; raises `WireError` PEER_LOST when it failed. A cancelled wait ends nothing."""
        if not self._future.done():
            await asyncio.wait([self._future])
        if self._future.cancelled() or self._future.exception() is not None:
            raise WireError(Reason.PEER_LOST, "the KV peer went away in the middle of a transfer")

    def forget(self) -> None:
        """Nobody will `wait` any more."""
        if self._future.done() and not self._future.cancelled():
            self._future.exception()

    @property
    def future(self) -> asyncio.Future[Any]:
        """Done when UCX touches the buffer no more."""
        return self._future


class UcxEndpoint:
    """This worker's connection to one other; tags are whole 64-bit numbers that both sides know."""

    def __init__(self, worker: Any, address: bytes) -> None:
        """Blocks for some milliseconds; raises `WireError` PEER_LOST when `address` cannot be used."""
        import ucxx._lib.libucxx as ucx

        self._worker = worker
        self._memory: PeerMemory | None = None
        try:
            remote = ucx.UCXAddress.create_from_buffer(address)
            self._endpoint = ucx.UCXEndpoint.create_from_worker_address(worker, remote, True)
        except ucx.UCXError as error:
            raise WireError(Reason.PEER_LOST, "the KV peer's UCX worker cannot be reached") from error

    @property
    def alive(self) -> bool:
        """Whether UCX has not found the peer lost so far."""
        return bool(self._endpoint.alive)

    def peer_memory(self, key: bytes) -> PeerMemory | None:
        """The peer's memory, good until `abort`, where this side can copy out of it and `key` is not empty. Once.

        Raises `WireError` PEER_LOST.
        """
        assert self._memory is None, "asked twice"
        if key and reads_memory(self._endpoint.handle):
            self._memory = PeerMemory(worker_handle=self._worker.handle, endpoint_handle=self._endpoint.handle, key=key)
        return self._memory

    def send(self, buffer: memoryview | bytes, tag: int) -> UcxTransfer:
        """Begin to send contiguous bytes."""
        from ucxx._lib.arr import Array
        from ucxx.types import Tag

        return self._begin(
            lambda: UcxTransfer(self._endpoint.tag_send(Array(buffer), Tag(tag)), buffer, receives=False)
        )

    def receive(self, buffer: memoryview, tag: int) -> UcxTransfer:
        """Begin to receive exactly len(buffer) bytes into writable contiguous memory."""
        from ucxx._lib.arr import Array
        from ucxx.types import Tag, TagMask

        def begin() -> UcxTransfer:
            request = self._endpoint.tag_recv(Array(buffer), Tag(tag), TagMask(_WHOLE_TAG))
            return UcxTransfer(request, buffer, receives=True)

        return self._begin(begin)

    def _begin(self, begin: Any) -> UcxTransfer:
        import ucxx._lib.libucxx as ucx

        try:
            self._endpoint.raise_on_error()
            transfer: UcxTransfer = begin()
        except ucx.UCXError as error:
            raise WireError(Reason.PEER_LOST, "the KV peer is unreachable or went away") from error
        return transfer

    async def abort(self, transfers: Iterable[UcxTransfer]) -> None:
        """Close at once; returns when UCX writes to no buffer of `transfers`. Cancelling it does not cut it short.

        Raises AssertionError when UCX keeps a receive: this process must not go on with its memory in foreign hands.
        """
        closing = asyncio.ensure_future(self._close(list(transfers)))
        await outlive([closing])
        closing.result()

    async def _close(self, transfers: Sequence[UcxTransfer]) -> None:
        loop = asyncio.get_running_loop()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        close = self._endpoint.close_blocking
        await loop.run_in_executor(None, lambda: close(period=_CLOSE_WAIT_NS, max_attempts=1))
        futures = [transfer.future for transfer in transfers]
        if any(transfer.receives for transfer in transfers):
            await asyncio.wait(futures, timeout=_RECEIVE_GRACE_S)
        elif futures:
            await asyncio.wait(futures, timeout=_SEND_GRACE_S)
        for transfer in transfers:
            transfer.forget()
            assert transfer.done or not transfer.receives, "UCX does not let go of a receive"
            if not transfer.done:
                _log.warning("UCX keeps a send to a peer that is gone; its buffer stays allocated")
                _never_free(transfer)
                _never_free(self._worker)


def _own_memory(context_handle: int) -> OwnMemory | None:
    """None where UCX has no key for it."""
    try:
        return OwnMemory(context_handle)
    except OSError as error:
        _log.info("KV readers cannot take from this process' memory by UCX: %s", error)
        return None


def _never_free(thing: object) -> None:
    """One reference too many, so that no destructor runs, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class UcxRuntime:
    """A UCX context and worker, its progress thread and the thread that wakes the loop.

    Made inside the running loop, or in another thread for `loop`.

    `carriers` is UCX's list of transports ("all", "tcp,self", "sm,self" ...), for measurements and tests; `standing` is
    this process' own unless given.
    """

    def __init__(
        self,
        *,
        carriers: str = "all",
        loop: asyncio.AbstractEventLoop | None = None,
        standing: Standing | None = None,
    ) -> None:
        """Takes some 30 ms, 400 if UCXX has to be imported first.

        Raises `ConfigError` when UCXX is missing or finds nothing to work with.
        """
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            import ucxx._lib.libucxx as ucx
        except ImportError:
            raise ConfigError("kv_transport: ucx needs the extra: pip install 'sangam[ucx]'") from None
        self._ucx = ucx
        self._loop = loop or asyncio.get_running_loop()
        try:
            features = (ucx.Feature.WAKEUP, ucx.Feature.TAG, ucx.Feature.RMA)
            context = ucx.UCXContext({"TLS": carriers}, feature_flags=features)
            self._worker = ucx.UCXWorker(context, enable_delayed_submission=True, enable_python_future=True)
            self._networks_address = networks_address(self._worker.handle)
        except (ucx.UCXError, OSError) as error:
            raise ConfigError(f"kv_transport: UCX cannot start with carriers {carriers!r}: {error}") from None
        self._address = bytes(self._worker.address.tobytes())
        self._standing = standing or this_standing()
        self._version = "{}.{}".format(*ucx.get_ucx_version())
        self._memory = _own_memory(context.handle)
        # Locks that somebody holds or waits for.
        self._turns: WeakValueDictionary[WorkerLife, asyncio.Lock] = WeakValueDictionary()
        self._left: dict[asyncio.Task[None], asyncio.Task[Any]] = {}
        self._closing = False
        self._may_hold_strays = False
        self._worker.start_progress_thread(polling_mode=False, epoll_timeout=_PROGRESS_EPOLL_MS)
        self._notifier = threading.Thread(target=self._notify, name="kv-ucx-notifier", daemon=True)
        self._notifier.start()

    def turn_of(self, owner: WorkerLife) -> asyncio.Lock:
        """Whoever introduces this worker to `owner` holds it until both ends have made their endpoint
        (`ucx_introduction` says why)."""
        return self._turns.setdefault(owner, asyncio.Lock())

    def leave(self, introducing: asyncio.Task[Any], ending: asyncio.Task[None]) -> None:
        """Nobody waits for `introducing` any more, and `ending` tidies up behind it; `close` cuts the one short, and
        waits for the other."""
        self._left[ending] = introducing
        ending.add_done_callback(self._left.pop)

    def introduction(self, first_tag: int, *, nonce: bytes = b"") -> UcxPeer:
        """What an owner must know to move bytes to this worker, and with a `nonce`, to let it read its memory."""
        return UcxPeer(
            ucx_version=self._version,
            worker_address=self._address,
            first_tag=first_tag,
            networks_address=self._networks_address,
            standing=self._standing,
            nonce=nonce,
        )

    def is_barred_from(self, reader: UcxPeer) -> bool:
        """Whether UCX would have this worker and the reader's share memory, and the kernel would not."""
        if self._standing is None or reader.standing is None:
            return False
        return self._standing.barred_from(reader.standing)

    def answer_to(self, reader: UcxPeer, proof: HeldProof | None) -> UcxPeer:
        """What a reader must know that has introduced itself; with a `proof` for its nonce, its way into this process'
        memory, for as long as that lives."""
        if self.is_barred_from(reader):
            return UcxPeer(ucx_version=self._version, worker_address=self._networks_address, first_tag=reader.first_tag)
        lends = self._memory is not None and proof is not None
        return UcxPeer(
            ucx_version=self._version,
            worker_address=self._address,
            first_tag=reader.first_tag,
            memory_key=self._memory.key if self._memory is not None and lends else b"",
            proof_address=proof.address if proof is not None and lends else 0,
        )

    def check_peer(self, peer: UcxPeer) -> None:
        """Raise `WireError` LAYOUT_MISMATCH unless this UCX can read the peer's address."""
        if peer.ucx_version != self._version:
            problem = f"the peer runs UCX {peer.ucx_version}, this worker {self._version}"
            raise WireError(Reason.LAYOUT_MISMATCH, problem)

    async def connect(self, address: bytes) -> UcxEndpoint:
        """An endpoint to the worker of that address; made off the loop. UCX connects with the first transfer."""
        making = self._loop.run_in_executor(None, lambda: UcxEndpoint(self._worker, address))
        try:
            await outlive([making])
        except asyncio.CancelledError:
            if making.exception() is None:
                await making.result().abort([])
            raise
        return making.result()

    def note_strays(self) -> None:
        """A read ended badly: messages for it may still come."""
        self._may_hold_strays = True

    async def close(self) -> None:
        """Stop both threads; no transfer may be under way. Idempotent."""
        if self._closing:
            return
        self._closing = True
        for introducing in self._left.values():
            introducing.cancel()
        await outlive(self._left)
        self._worker.stop_request_notifier_thread()
        await self._loop.run_in_executor(None, self._notifier.join)
        await self._loop.run_in_executor(None, self._worker.stop_progress_thread)
        if self._memory is not None:
            self._memory.close()
        if self._may_hold_strays:
            _never_free(self._worker)

    def _notify(self) -> None:
        """Wake the loop whenever transfers have ended: their futures may only be set there."""
        state = self._ucx.PythonRequestNotifierWaitState
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            self._worker.populate_python_futures_pool()
            woken_by = self._worker.wait_request_notifier(period_ns=_NOTIFIER_WAIT_NS)
            if woken_by == state.Ready and not self._hand_over():
                break
        self._worker.clear_python_futures_pool()

    def _hand_over(self) -> bool:
        """Run the pending notifications on the loop, and wait for that; False when the loop has ended."""
        done = threading.Event()

        def run() -> None:
            try:
                self._worker.run_request_notifier()
            finally:
                done.set()

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:
            return False
        while not done.wait(0.1):
            if self._loop.is_closed() or self._closing:
                return False
        return True
