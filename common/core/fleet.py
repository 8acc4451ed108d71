"""The live workers: who exists, who may be given what. Decides targets; reserves nothing."""

from __future__ import annotations

from common.core.cluster import WorkerSpec
from common.core.dispatch import bindable_tokens, wanted_tokens
from common.core.ids import Role, ServingMode, WorkerId, WorkerLife
from common.core.incarnations import Incarnations
from common.core.options import Dispatch
from common.core.overflow import must_hold_back
from common.core.placement import (
    COLOCATED_POLICIES,
    DECODE_POLICIES,
    LEAST_OUTSTANDING_TOKENS,
    PREFILL_POLICIES,
    BlockNeed,
    Policy,
)
from common.core.reach import Reach
from common.core.roster import Roster
from common.core.scheduler_config import SchedulerConfig
from common.core.worker_account import WorkerAccount


class Fleet:
    """Accounts of live workers by worker id, and the choice of a target for a block.

    What changes only with membership (rosters, who can serve which canvas at all) is computed anew at the first
    question after a change; what changes with every call is brought up to date for the workers concerned only.
    `threshold_tokens` is θ in force.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._accounts: dict[WorkerId, WorkerAccount] = {}
        self._touched: set[WorkerId] = set()
        self._incarnations = Incarnations()
        self._refused_pairs: set[tuple[WorkerLife, WorkerLife]] = set()
        self._threshold_tokens = config.overload_threshold_tokens
        self._now = 0.0
        self._reach: Reach | None = None
        self._rosters_stale = True
        self._writers = self._roster([], LEAST_OUTSTANDING_TOKENS)
        self._locals = self._writers
        self._readers: dict[str, Roster[WorkerAccount]] = {}
        self._free_tokens: dict[WorkerId, int] = {}
        self._free_tokens_sum = 0

    @property
    def accounts(self) -> list[WorkerAccount]:
        """All live accounts, by worker id."""
        return [self._accounts[worker_id] for worker_id in sorted(self._accounts)]

    @property
    def threshold_tokens(self) -> int:
        """θ in force."""
        return self._threshold_tokens

    @threshold_tokens.setter
    def threshold_tokens(self, value: int) -> None:
        """Put another θ in force: who counts as overloaded changes with it."""
        self._rosters_stale |= value != self._threshold_tokens
        self._threshold_tokens = value

    @property
    def canvas_limit_tokens(self) -> int | None:
        """Longest canvas that some worker (pair) could serve when empty; None while nobody can serve anything."""
        return self._reaches().canvas_limit_tokens

    def get(self, life: WorkerLife) -> WorkerAccount | None:
        """The account of that life, if it is live."""
        account = self._accounts.get(life.worker_id)
        return account if account is not None and account.spec.life.incarnation == life.incarnation else None

    def current(self, worker_id: WorkerId) -> WorkerAccount | None:
        """The account of whatever life that worker id has now."""
        return self._accounts.get(worker_id)

    def is_stale(self, life: WorkerLife) -> bool:
        """Whether that life is over."""
        return self._incarnations.is_stale(life)

    def least_incarnation(self, worker_id: WorkerId) -> int:
        """Smallest incarnation that a further life of that worker may have."""
        return self._incarnations.least(worker_id)

    def other_model(self, spec: WorkerSpec) -> WorkerId | None:
        """A live worker, other than a former life of this one, that serves another model; None if there is none."""
        for worker_id, account in self._accounts.items():
            theirs = account.spec.model_fingerprint
            differs = theirs and spec.model_fingerprint and theirs != spec.model_fingerprint
            if differs and worker_id != spec.life.worker_id:
                return worker_id
        return None

    def add(self, spec: WorkerSpec) -> None:
        """A new life; the caller has removed any older one."""
        assert spec.life.worker_id not in self._accounts and not self.is_stale(spec.life), spec.life
        self._incarnations.observe(spec.life)
        self._accounts[spec.life.worker_id] = WorkerAccount.open(spec, self._touched)
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

    def wake(self, worker_id: WorkerId) -> None:
        """A back-off from that worker may be over."""
        self._touched.add(worker_id)

    def refuse_pair(self, owner: WorkerLife, reader: WorkerLife) -> None:
        """These two cannot exchange K/V, whatever their fingerprints say."""
        self._refused_pairs.add((owner, reader))
        self._membership_changed()

    def prefill_target(
        self, need: BlockNeed, *, backlog_tokens: int, now: float, home: WorkerId | None = None
    ) -> WorkerAccount | None:
        """Where the block's prefill goes now, or None. A decode worker means: prefill there too (colocated, overflow).

        `backlog_tokens` is the decode memory that finished prefills wait for, page-rounded. `home` is the worker that a
        sticky request would like best (colocated).
        """
        self._bring_up_to_date(now)
        config = self._config
        if config.mode is ServingMode.COLOCATED:
            at_home = None if home is None else self._locals.has_room(home, need.canvas_tokens)
            return at_home or self._pick(COLOCATED_POLICIES[config.colocated_policy], self._locals, need)
        target = self._pick(PREFILL_POLICIES[config.prefill_policy], self._writers, need)
        if target is None and config.overflows and self._spares(need, backlog_tokens=backlog_tokens):
            target = self._pick(LEAST_OUTSTANDING_TOKENS, self._locals, need)
        return target

    def decode_target(self, need: BlockNeed, *, owner: WorkerSpec, now: float) -> WorkerAccount | None:
        """Where a prefilled block decodes now, or None: it waits for memory. `need.barred` is filled in here."""
        self._bring_up_to_date(now)
        readers = self._readers.get(owner.layout_fingerprint)
        if readers is None:
            return None
        return self._pick(DECODE_POLICIES[self._config.decode_policy], readers, need)

    def early_target(
        self, need: BlockNeed, *, owner: WorkerSpec, now: float, overflow_canvas_tokens: int
    ) -> WorkerAccount | None:
        """Where a block decodes whose prefill still runs, or None: better not chosen yet.

        `overflow_canvas_tokens` is the canvas of the block that waits for a prefill and may overflow (0: none does).
        """
        self._bring_up_to_date(now)
        overflow_tokens = self._reaches().page_rounded_tokens(overflow_canvas_tokens)
        if not self._spares(need, backlog_tokens=overflow_tokens):
            return None
        return self.decode_target(need, owner=owner, now=now)

    def barred_readers(self, owner: WorkerLife) -> frozenset[WorkerId]:
        """Decode workers that refused K/V of that owner."""
        return frozenset(reader.worker_id for writer, reader in self._refused_pairs if writer == owner)

    def stranded(self, owner: WorkerSpec, canvas_tokens: int) -> bool:
        """Decode workers exist, but none can ever take K/V of that owner and length: it must be prefilled elsewhere."""
        reach = self._reaches()
        return reach.has_readers and canvas_tokens > reach.of(owner)

    def _pick(self, policy: Policy, roster: Roster[WorkerAccount], need: BlockNeed) -> WorkerAccount | None:
        chosen: WorkerAccount | None = policy.pick(roster, need)
        return chosen

    def _spares(self, need: BlockNeed, *, backlog_tokens: int) -> bool:
        """Whether decode memory is left for `backlog_tokens` (page-rounded) that wait for it, after this canvas."""
        need_tokens = self._reaches().page_rounded_tokens(need.canvas_tokens)
        return not must_hold_back(
            free_tokens=self._free_tokens_sum, backlog_tokens=backlog_tokens, need_tokens=need_tokens
        )

    def _room(self, account: WorkerAccount) -> int:
        """Longest canvas that may be prefilled there now, in tokens."""
        config = self._config
        overloaded = config.mode is ServingMode.HYBRID and account.outstanding_prefill_tokens >= self._threshold_tokens
        if overloaded:
            return 0
        room = self._memory(account)
        if account.spec.role is Role.PREFILL:
            room = min(room, self._reaches().of(account.spec))
        bindable = self._bindable(account)
        return room if bindable is None else min(room, bindable)

    def _bindable(self, account: WorkerAccount) -> int | None:
        """Longest canvas that it is time to give to that worker; None: any."""
        if account.says_what_it_wants:
            return wanted_tokens(account)
        late = self._config.dispatch is Dispatch.LATE
        return bindable_tokens(account, self._config.dispatch_ahead) if late else None

    def _memory(self, account: WorkerAccount) -> int:
        """Longest canvas it has pages for now; 0 during a back-off."""
        if account.backoff_until_s > self._now:
            return 0
        return min(account.pages_free * account.spec.page_size_tokens, account.spec.canvas_limit_tokens)

    def _reaches(self) -> Reach:
        if self._reach is None:
            willing = [account.spec for account in self._accounts.values() if not account.draining]
            self._reach = Reach(self._config, willing, self._refused_pairs)
        return self._reach

    def _membership_changed(self) -> None:
        self._reach = None
        self._rosters_stale = True

    def _bring_up_to_date(self, now: float) -> None:
        self._now = now
        if self._rosters_stale:
            self._rosters_stale = False
            self._make_rosters()
        else:
            for worker_id in self._touched:
                self._refresh(worker_id)
        self._touched.clear()

    def _make_rosters(self) -> None:
        config = self._config
        willing = [account for account in self._accounts.values() if not account.draining]
        decoders = [account for account in willing if account.spec.role is Role.DECODE]
        writers = [account for account in willing if account.spec.role is Role.PREFILL]
        colocated = config.mode is ServingMode.COLOCATED
        self._writers = self._roster(writers, PREFILL_POLICIES[config.prefill_policy])
        self._locals = self._roster(
            decoders if colocated or config.overflows else [],
            COLOCATED_POLICIES[config.colocated_policy] if colocated else LEAST_OUTSTANDING_TOKENS,
        )
        policy = DECODE_POLICIES[config.decode_policy]
        by_layout: dict[str, list[WorkerAccount]] = {}
        for account in [] if colocated else decoders:
            by_layout.setdefault(account.spec.layout_fingerprint, []).append(account)
        self._readers = {
            layout: Roster(those, room=self._memory, rank=policy.rank, grouped=policy.by_domain)
            for layout, those in by_layout.items()
        }
        self._free_tokens = {account.spec.life.worker_id: self._count_free(account) for account in decoders}
        self._free_tokens_sum = sum(self._free_tokens.values())

    def _roster(self, accounts: list[WorkerAccount], policy: Policy) -> Roster[WorkerAccount]:
        return Roster(accounts, room=self._room, rank=policy.rank, grouped=policy.by_domain)

    def _refresh(self, worker_id: WorkerId) -> None:
        account = self._accounts.get(worker_id)
        if account is None or account.draining:
            return
        if account.spec.role is Role.PREFILL:
            self._writers.refresh(worker_id)
            return
        if worker_id in self._locals:
            self._locals.refresh(worker_id)
        if self._readers:
            self._readers[account.spec.layout_fingerprint].refresh(worker_id)
        free_tokens = self._count_free(account)
        self._free_tokens_sum += free_tokens - self._free_tokens[worker_id]
        self._free_tokens[worker_id] = free_tokens

    def _count_free(self, account: WorkerAccount) -> int:
        resting = account.backoff_until_s > self._now
        return 0 if resting else account.pages_free * account.spec.page_size_tokens
