"""The live workers: who exists, who may be given what. Decides targets; reserves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.core.cluster import WorkerSpec
from common.core.ids import Role, ServingMode, WorkerId, WorkerLife
from common.core.incarnations import Incarnations
from common.core.overflow import overflow_target
from common.core.placement import (
    COLOCATED_POLICIES,
    DECODE_POLICIES,
    PREFILL_POLICIES,
    BlockNeed,
    Policy,
    under_threshold,
    with_pages,
)
from common.core.scheduler_config import SchedulerConfig
from common.core.worker_account import WorkerAccount


class Fleet:
    """Accounts of live workers by worker id, and the choice of a target for a block.

    What changes only with membership (who can serve which canvas at all) is computed once per change.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._accounts: dict[WorkerId, WorkerAccount] = {}
        self._incarnations = Incarnations()
        self._refused_pairs: set[tuple[WorkerLife, WorkerLife]] = set()
        self._prefillers: list[WorkerAccount] = []
        self._decoders: list[WorkerAccount] = []
        self._reach_tokens: dict[WorkerLife, int] = {}
        self._canvas_limit_tokens: int | None = None

    @property
    def accounts(self) -> list[WorkerAccount]:
        """All live accounts, by worker id."""
        return [self._accounts[worker_id] for worker_id in sorted(self._accounts)]

    @property
    def canvas_limit_tokens(self) -> int | None:
        """Longest canvas that some worker (pair) could serve when empty; None while nobody can serve anything."""
        return self._canvas_limit_tokens

    def get(self, life: WorkerLife) -> WorkerAccount | None:
        """The account of that life, if it is live."""
        account = self._accounts.get(life.worker_id)
        return account if account is not None and account.life == life else None

    def current(self, worker_id: WorkerId) -> WorkerAccount | None:
        """The account of whatever life that worker id has now."""
        return self._accounts.get(worker_id)

    def is_stale(self, life: WorkerLife) -> bool:
        """Whether that life is over."""
        return self._incarnations.is_stale(life)

    def add(self, spec: WorkerSpec) -> None:
        """A new life; the caller has removed any older one."""
        assert spec.life.worker_id not in self._accounts and not self.is_stale(spec.life), spec.life
        self._incarnations.observe(spec.life)
        self._accounts[spec.life.worker_id] = WorkerAccount.open(spec)
        self._membership_changed()

    def remove(self, life: WorkerLife) -> WorkerAccount | None:
        """That life is over; returns its account if it was live."""
        account = self.get(life)
        self._incarnations.fence(life)
        if account is not None:
            del self._accounts[life.worker_id]
            self._refused_pairs = {pair for pair in self._refused_pairs if life not in pair}
            self._membership_changed()
        return account

    def drain(self, account: WorkerAccount) -> None:
        """No new work for it."""
        account.draining = True
        self._membership_changed()

    def refuse_pair(self, owner: WorkerLife, reader: WorkerLife) -> None:
        """These two cannot exchange K/V, whatever their fingerprints say."""
        self._refused_pairs.add((owner, reader))
        self._membership_changed()

    def prefill_target(self, need: BlockNeed, *, backlog_tokens: int, now: float) -> WorkerAccount | None:
        """Where the block's prefill goes now, or None. A decode worker means: prefill there too (colocated, overflow).

        `backlog_tokens` is the decode memory that finished prefills wait for, page-rounded.
        """
        config = self._config
        decoders = _rested(self._decoders, now)
        if config.mode is ServingMode.COLOCATED:
            return self._apply(
                COLOCATED_POLICIES[config.colocated_policy], with_pages(decoders, need.canvas_tokens), need
            )
        able = [
            worker for worker in _rested(self._prefillers, now) if self._prefill_limit(worker) >= need.canvas_tokens
        ]
        if config.mode is ServingMode.HYBRID:
            able = under_threshold(able, config.overload_threshold_tokens)
        target = self._apply(PREFILL_POLICIES[config.prefill_policy], with_pages(able, need.canvas_tokens), need)
        if target is None and config.overflows:
            target = overflow_target(
                decoders,
                need,
                threshold_tokens=config.overload_threshold_tokens,
                backlog_tokens=backlog_tokens,
            )
        return target

    def decode_target(self, need: BlockNeed, *, owner: WorkerSpec, now: float) -> WorkerAccount | None:
        """Where a prefilled block decodes now, or None: it waits for memory."""
        able = [worker for worker in _rested(self._decoders, now) if self.matches(owner, worker)]
        return self._apply(DECODE_POLICIES[self._config.decode_policy], with_pages(able, need.canvas_tokens), need)

    def matches(self, owner: WorkerSpec, reader: WorkerAccount) -> bool:
        """Whether K/V written by `owner` can be read by `reader`."""
        same = owner.layout_fingerprint == reader.spec.layout_fingerprint
        return same and (owner.life, reader.life) not in self._refused_pairs

    def stranded(self, owner: WorkerSpec, canvas_tokens: int) -> bool:
        """Decode workers exist, but none can ever take K/V of that owner and length: it must be prefilled elsewhere."""
        return bool(self._decoders) and canvas_tokens > self._reach_of(owner)

    def _prefill_limit(self, worker: WorkerAccount) -> int:
        return min(worker.spec.canvas_limit_tokens, self._reach_tokens[worker.life])

    def _reach_of(self, owner: WorkerSpec) -> int:
        """Longest canvas that some decode worker could take over from `owner`."""
        limits = (worker.spec.canvas_limit_tokens for worker in self._decoders if self.matches(owner, worker))
        return max(limits, default=0)

    def _apply(self, policy: Policy, candidates: Sequence[WorkerAccount], need: BlockNeed) -> WorkerAccount | None:
        chosen = policy(candidates, need)
        return None if chosen is None else self._accounts[chosen.spec.life.worker_id]

    def _membership_changed(self) -> None:
        willing = [account for account in self.accounts if not account.draining]
        self._prefillers = [account for account in willing if account.spec.role is Role.PREFILL]
        self._decoders = [account for account in willing if account.spec.role is Role.DECODE]
        self._reach_tokens = {worker.life: self._reach_of(worker.spec) for worker in self._prefillers}
        self._canvas_limit_tokens = self._limit()

    def _limit(self) -> int | None:
        if not self._decoders:
            return None
        alone = max(worker.spec.canvas_limit_tokens for worker in self._decoders)
        paired = max((self._prefill_limit(worker) for worker in self._prefillers), default=0)
        if self._config.mode is ServingMode.COLOCATED:
            return alone
        if self._config.overflows:
            return max(alone, paired)
        return paired or None


def _rested(workers: Iterable[WorkerAccount], now: float) -> list[WorkerAccount]:
    return [worker for worker in workers if worker.backoff_until_s <= now]
