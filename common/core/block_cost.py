"""What one block has cost so far, gathered over its attempts."""

from __future__ import annotations

from dataclasses import dataclass

from common.core.effects import BlockPlacement
from common.core.work import BlockCompletion, KvTransfer

NO_TRANSFER = KvTransfer(transfer_s=0.0, exposed_s=0.0, transfer_bytes=0)


@dataclass(slots=True, kw_only=True, eq=False)
class BlockCost:
    """Times in seconds. `queue_s` sums every wait for a worker; the rest is of the attempt that succeeded."""

    ready_s: float
    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer: KvTransfer = NO_TRANSFER
    decode_from_s: float = 0.0
    prefill_worker_id: str = ""
    decode_worker_id: str | None = None
    overflow: bool = False

    def wait(self, now: float) -> None:
        """The block waits for a worker from now on."""
        self.ready_s = now

    def place(self, now: float) -> None:
        """The wait is over."""
        self.queue_s += now - self.ready_s

    def begin_attempt(self, *, prefill_worker_id: str, overflow: bool) -> None:
        """A new attempt's prefill was placed: earlier attempts' figures no longer count."""
        self.prefill_worker_id = prefill_worker_id
        self.decode_worker_id = None
        self.overflow = overflow
        self.prefill_s = 0.0
        self.transfer = NO_TRANSFER

    def begin_decode(self, at_s: float, *, decode_worker_id: str) -> None:
        """A decode call was placed then; one that was placed during the prefill begins with its end."""
        self.decode_worker_id = decode_worker_id
        self.decode_from_s = at_s

    def kv_arrived(self, transfer: KvTransfer) -> None:
        """The decode worker holds the K/V: decoding proper began when the transfer ended, whenever we hear of it."""
        self.transfer = transfer
        self.decode_from_s += transfer.exposed_s

    def placement(self, *, block: int, attempts: int, completion: BlockCompletion, now: float) -> BlockPlacement:
        """The final account of the block."""
        return BlockPlacement(
            block=block,
            prefill_worker_id=self.prefill_worker_id,
            decode_worker_id=self.decode_worker_id,
            overflow=self.overflow,
            prefill_forwards=completion.prefill_forwards,
            decode_forwards=completion.decode_forwards,
            attempts=attempts,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            transfer_s=self.transfer.transfer_s,
            transfer_exposed_s=self.transfer.exposed_s,
            transfer_bytes=self.transfer.transfer_bytes,
            decode_s=0.0 if self.decode_worker_id is None else now - self.decode_from_s,
        )
