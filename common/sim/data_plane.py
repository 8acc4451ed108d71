"""K/V on its way from a prefill worker to a decode worker: one transfer at a time per GPU link, in order of request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.core.ids import BlockAttempt, WorkerId, WorkerLife
from common.core.work import KvHandle, KvTransfer
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
    """What moving K/V costs: `setup_s` of latency per transfer, and its bytes over `bytes_per_s`."""

    setup_s: float
    bytes_per_s: float
    kv_bytes_per_token: int


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


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """One fetch. `owner` is set while the pages are read."""

    attempt: BlockAttempt
    handle: KvHandle
    reader: KvPeer
    started_s: float
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

    def join(self, peer: KvPeer) -> None:
        """A worker process is there, in place of an earlier one of its name."""
        self._peers[peer.life.worker_id] = peer

    def fetch(self, reader: KvPeer, attempt: BlockAttempt, handle: KvHandle) -> None:
        """Begin; the reader hears KvFetched or KvFetchFailed."""
        transfer = Transfer(attempt=attempt, handle=handle, reader=reader, started_s=self._agenda.now)
        self._live[attempt] = transfer
        self._agenda.after(self._network.delay_s(reader.life.worker_id), self._open, transfer)
        self._agenda.after(handle.lease_s, self._fail, transfer, Reason.DEADLINE_EXCEEDED)

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
        elif not owner.offers(transfer.attempt):
            self._fail(transfer, Reason.KV_NOT_FOUND)
        else:
            transfer.owner = owner
            owner.feed(KvSendStarted(attempt=transfer.attempt))
            self._agenda.at(self._arrival_s(transfer), self._arrive, transfer)

    def _arrival_s(self, transfer: Transfer) -> float:
        """When the last byte arrives; takes the links of both ends while bytes flow, not during the setup."""
        ends = (transfer.handle.owner.worker_id, transfer.reader.life.worker_id)
        start_s = max(self._agenda.now, *(self._free_s.get(end, 0.0) for end in ends))
        slowness = max(self._network.slow.get(end, 1.0) for end in ends)
        end_s = start_s + self._bytes(transfer) / self._link.bytes_per_s * slowness
        for end in ends:
            self._free_s[end] = end_s
        return end_s + self._link.setup_s * slowness

    def _arrive(self, transfer: Transfer) -> None:
        owner = transfer.owner
        if transfer.ended or owner is None:
            return
        if owner.frozen_until_s > self._agenda.now:
            self._agenda.at(owner.frozen_until_s, self._arrive, transfer)
            return
        self._end(transfer)
        owner.feed(KvReleased(attempt=transfer.attempt))
        transfer.reader.feed(
            KvFetched(
                attempt=transfer.attempt,
                transfer=KvTransfer(
                    transfer_s=self._agenda.now - transfer.started_s,
                    exposed_s=self._agenda.now - transfer.started_s,
                    transfer_bytes=self._bytes(transfer),
                ),
                first=None,
            )
        )

    def _fail(self, transfer: Transfer, reason: Reason) -> None:
        if not transfer.ended:
            self._end(transfer)
            transfer.reader.feed(KvFetchFailed(attempt=transfer.attempt, reason=reason))

    def _end(self, transfer: Transfer) -> None:
        transfer.ended = True
        # A later attempt's transfer has another key; a cancelled and repeated one may have taken this place.
        if self._live.get(transfer.attempt) is transfer:
            del self._live[transfer.attempt]
        if transfer.owner is not None:
            transfer.owner.feed(KvSendEnded(attempt=transfer.attempt))

    def _bytes(self, transfer: Transfer) -> int:
        return transfer.handle.canvas_tokens * self._link.kv_bytes_per_token
