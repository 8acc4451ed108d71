"""K/V on its way from a prefill worker to a decode worker: one transfer at a time per GPU link, in order of request.

A reader may come before the prefill, and waits for it; each part of the K/V then leaves when it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.core.ids import BlockAttempt, WorkerId, WorkerLife
from common.core.work import KvHandle, KvTransfer, StepDelta
from common.core.worker_events import (
    KvFetched,
    KvFetchFailed,
    KvReleased,
    KvSendEnded,
    KvSendStarted,
    WorkerEvent,
)
from common.errors import Reason
from common.sim.agenda import Agenda
from common.sim.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """What moving K/V costs: `setup_s` of latency before a transfer, and its bytes over `bytes_per_s`.

    It travels in `parts` of one length: all but the last can leave before the forward that computes them ends.
    """

    setup_s: float
    bytes_per_s: float
    kv_bytes_per_token: int
    parts: int


class KvPeer(Protocol):
    """A worker process as the data plane needs it."""

    life: WorkerLife
    alive: bool
    frozen_until_s: float

    def feed(self, event: WorkerEvent) -> None:
        """Hand an event to its core, once it is awake."""
        ...

    def offers(self, attempt: BlockAttempt) -> bool:
        """Whether it retains that K/V."""
        ...

    def computes_until_s(self, attempt: BlockAttempt) -> float | None:
        """When the forward that computes that K/V ends; None: none runs."""
        ...

    def revealed(self, attempt: BlockAttempt) -> StepDelta:
        """What the prefill of the K/V that it retains revealed."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """One fetch, `early` if begun before its prefill was known to have ended. `owner` is set while the pages are read.

    `computed_s`: when the owner had computed it all, or will have; before the fetch began if nothing else is said.
    """

    attempt: BlockAttempt
    handle: KvHandle
    reader: KvPeer
    early: bool
    started_s: float
    computed_s: float = 0.0
    owner: KvPeer | None = None
    ended: bool = False


class DataPlane:
    """All transfers of a cluster. Outcomes go to the cores by `feed`, never from inside a core's own `handle`."""

    def __init__(self, agenda: Agenda, network: Network, link: KvLink) -> None:
        self._agenda = agenda
        self._network = network
        self._link = link
        self._peers: dict[WorkerId, KvPeer] = {}
        self._live: dict[BlockAttempt, Transfer] = {}
        self._free_s: dict[WorkerId, float] = {}
        self._last_parts_free_s: dict[WorkerId, float] = {}
        self._waiting: dict[BlockAttempt, Transfer] = {}

    def join(self, peer: KvPeer) -> None:
        """A worker process is there, in place of an earlier one of its name."""
        self._peers[peer.life.worker_id] = peer

    def fetch(self, reader: KvPeer, attempt: BlockAttempt, handle: KvHandle, *, early: bool) -> None:
        """Begin; the reader hears KvFetched or KvFetchFailed."""
        transfer = Transfer(attempt=attempt, handle=handle, reader=reader, early=early, started_s=self._agenda.now)
        self._live[attempt] = transfer
        self._agenda.after(self._network.delay_s(reader.life.worker_id), self._open, transfer)
        self._agenda.after(handle.lease_s, self._fail, transfer, Reason.DEADLINE_EXCEEDED)

    def begin_prefill(self, attempt: BlockAttempt) -> None:
        """A forward that computes this K/V has begun: whoever waited for it reads along."""
        transfer = self._waiting.pop(attempt, None)
        if transfer is not None:
            # Not from inside the owner's own `handle`.
            self._agenda.after(0.0, self._open, transfer)

    def abort(self, attempt: BlockAttempt) -> None:
        """The reader gives up, or the owner withdraws: the other side hears of it at once."""
        transfer = self._live.get(attempt)
        if transfer is not None:
            self._agenda.after(0.0, self._fail, transfer, Reason.KV_NOT_FOUND)

    def lose(self, life: WorkerLife) -> None:
        """That life is over: what it reads or sends ends."""
        for transfer in list(self._live.values()):
            if life in (transfer.handle.owner, transfer.reader.life):
                self._fail(transfer, Reason.PEER_LOST)

    def _open(self, transfer: Transfer) -> None:
        if transfer.ended:
            return
        handle = transfer.handle
        owner = self._peers.get(handle.owner.worker_id)
        if owner is None or not owner.alive:
            self._fail(transfer, Reason.PEER_LOST)
        elif owner.frozen_until_s > self._agenda.now:
            self._agenda.at(owner.frozen_until_s, self._open, transfer)
        elif owner.life != handle.owner:
            self._fail(transfer, Reason.STALE_INCARNATION)
        else:
            self._read(transfer, owner)

    def _read(self, transfer: Transfer, owner: KvPeer) -> None:
        attempt = transfer.attempt
        computed_s = owner.computes_until_s(attempt) if transfer.early else None
        if computed_s is None and not owner.offers(attempt):
            if transfer.early:
                self._waiting[attempt] = transfer
            else:
                self._fail(transfer, Reason.KV_NOT_FOUND)
            return
        transfer.owner = owner
        transfer.computed_s = transfer.started_s if computed_s is None else computed_s
        owner.feed(KvSendStarted(attempt=attempt))
        self._agenda.at(self._arrival_s(transfer), self._arrive, transfer)

    def _arrival_s(self, transfer: Transfer) -> float:
        """When the last byte arrives; takes the links of both ends while bytes flow, not during the setup."""
        ends = (transfer.handle.owner.worker_id, transfer.reader.life.worker_id)
        start_s = max(self._agenda.now, *(self._free_s.get(end, 0.0) for end in ends))
        slowness = max(self._network.slow.get(end, 1.0) for end in ends)
        flow_s = self._bytes(transfer) / self._link.bytes_per_s * slowness
        end_s = start_s + flow_s
        for end in ends:
            self._free_s[end] = end_s
        arrival_s = end_s + self._link.setup_s * slowness
        last_s = flow_s / self._link.parts
        if arrival_s - last_s >= transfer.computed_s:
            return arrival_s
        # Everything but the last part is there; of several whose forward ends now, the last parts go one by one.
        last_from_s = max(transfer.computed_s, *(self._last_parts_free_s.get(end, 0.0) for end in ends))
        for end in ends:
            self._last_parts_free_s[end] = last_from_s + last_s
        return last_from_s + last_s

    def _arrive(self, transfer: Transfer) -> None:
        owner = transfer.owner
        if transfer.ended or owner is None:
            return
        if owner.frozen_until_s > self._agenda.now:
            self._agenda.at(owner.frozen_until_s, self._arrive, transfer)
            return
        if not owner.offers(transfer.attempt):
            # The prefill has kept nothing: its own step finished the block, or it was cancelled.
            self._fail(transfer, Reason.KV_NOT_FOUND)
            return
        first = owner.revealed(transfer.attempt) if transfer.early else None
        self._end(transfer)
        owner.feed(KvReleased(attempt=transfer.attempt))
        moved = KvTransfer(
            transfer_s=self._agenda.now - transfer.started_s,
            exposed_s=self._agenda.now - max(transfer.computed_s, transfer.started_s),
            transfer_bytes=self._bytes(transfer),
        )
        transfer.reader.feed(KvFetched(attempt=transfer.attempt, transfer=moved, first=first))

    def _fail(self, transfer: Transfer, reason: Reason) -> None:
        if not transfer.ended:
            self._end(transfer)
            transfer.reader.feed(KvFetchFailed(attempt=transfer.attempt, reason=reason))

    def _end(self, transfer: Transfer) -> None:
        transfer.ended = True
        # A later attempt's transfer has another key; a cancelled and repeated one may have taken this place.
        if self._live.get(transfer.attempt) is transfer:
            del self._live[transfer.attempt]
        if self._waiting.get(transfer.attempt) is transfer:
            del self._waiting[transfer.attempt]
        if transfer.owner is not None:
            transfer.owner.feed(KvSendEnded(attempt=transfer.attempt))

    def _bytes(self, transfer: Transfer) -> int:
        return transfer.handle.canvas_tokens * self._link.kv_bytes_per_token
