"""Random lives of a worker: whatever callers, engine and data plane may do, in any order, under the oracle's eyes."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from common.core.ids import BlockAttempt, RequestId, Role
from common.core.params import CacheMode
from common.core.work import BlockWork, KvSource, LocalPrefill
from common.errors import Reason
from tests.core.worker_shell import WorkerShell
from tests.core.worker_work import EOS, early_kv, no_kv, remote_kv, work, worker_config

TOKENS = st.sampled_from([3, 4, EOS])
WORKS = st.builds(
    work,
    st.builds(
        BlockAttempt,
        request_id=st.sampled_from([RequestId(f"r{number}") for number in range(8)]),
        block=st.integers(0, 1),
        attempt=st.integers(0, 2),
    ),
    prompt_tokens=st.integers(1, 30),
    max_tokens=st.integers(5, 12),
    block_length_tokens=st.sampled_from([4]),
    cache_mode=st.sampled_from(CacheMode),
    ignore_eos=st.booleans(),
)


class WorkerMachine(RuleBasedStateMachine):
    """Rules for both roles; `initialize` draws a worker with little memory and little budget."""

    @initialize(
        role=st.sampled_from(Role),
        pages=st.integers(6, 24),
        tau=st.sampled_from([8, 16, 64]),
        batch=st.integers(1, 4),
        adapts=st.sampled_from([False, False, True]),
    )
    def start(self, role, pages, tau, batch, adapts):
        self.shell = WorkerShell(
            worker_config(
                role,
                pages_total=pages,
                token_budget_tokens=tau,
                max_prefill_tokens_per_batch=tau,
                max_batch_size=batch,
                token_budget_adapts=adapts,
            )
        )
        self.books = self.shell.books

    def _pick(self, data: st.DataObject, attempts: Iterable[BlockAttempt]) -> BlockAttempt:
        return data.draw(st.sampled_from(sorted(attempts)))

    @rule(what=WORKS, source=st.sampled_from(["local", "remote", "early"]))
    def submit(self, what: BlockWork, source: str):
        call = self.books.calls.get(what.attempt)
        if call is not None and not call.ended:
            return
        kv: KvSource | None = None
        if self.shell.config.role is Role.DECODE:
            remote = no_kv if what.cache_mode is CacheMode.NONE else early_kv if source == "early" else remote_kv
            kv = LocalPrefill() if source == "local" else remote(what)
        self.shell.submit(what, kv)

    @precondition(lambda self: self.books.calls)
    @rule(data=st.data())
    def cancel(self, data):
        self.shell.cancel(self._pick(data, self.books.calls))

    @precondition(lambda self: self.books.running)
    @rule(data=st.data())
    def complete(self, data):
        reveals = {}
        for attempt in (*self.shell.batch.decodes, *self.shell.batch.prefills):
            masked = self.books.calls[attempt].masked
            positions = data.draw(st.sets(st.sampled_from(masked), min_size=1))
            reveals[attempt] = {position: data.draw(TOKENS) for position in sorted(positions)}
        self.shell.complete(reveals)

    @precondition(lambda self: self.books.running)
    @rule()
    def complete_slowly(self):
        """Each block reveals one token: decodes pile up."""
        self.shell.complete()

    @precondition(lambda self: self.shell.config.role is Role.DECODE)
    @rule(turns=st.integers(4, 16))
    def feed(self, turns):
        """Fresh decodes keep coming, each worth more than the smallest budget."""
        for turn in range(turns):
            what = work(f"fed{self.shell.arrivals}.{turn}", prompt_tokens=1, cache_mode=CacheMode.NONE)
            self.shell.submit(what, no_kv(what))
            if self.books.running:
                self.shell.complete()

    @precondition(lambda self: self.books.fetching)
    @rule(data=st.data())
    def fetched(self, data):
        self.shell.fetched(self._pick(data, self.books.fetching))

    @precondition(lambda self: self.books.fetching)
    @rule(data=st.data(), reason=st.sampled_from([Reason.PEER_LOST, Reason.KV_CHECKSUM, Reason.KV_LEASE_EXPIRED]))
    def fetch_failed(self, data, reason):
        self.shell.fetch_failed(self._pick(data, self.books.fetching), reason)

    def _readable(self) -> list[BlockAttempt]:
        """What a peer may read: on offer, or being computed."""
        books = self.books
        computed = books.in_forward if self.shell.config.role is Role.PREFILL else ()
        return [*computed, *(attempt for attempt, offer in books.offers.items() if not offer.withdrawn)]

    @precondition(lambda self: self._readable())
    @rule(data=st.data())
    def send_started(self, data):
        self.shell.send_started(self._pick(data, self._readable()))

    @precondition(lambda self: +self.books.sends)
    @rule(data=st.data())
    def send_ended(self, data):
        self.shell.send_ended(self._pick(data, +self.books.sends))

    @precondition(lambda self: self.books.calls)
    @rule(data=st.data())
    def release(self, data):
        self.shell.release(self._pick(data, self.books.offers or self.books.calls))

    @rule(seconds=st.sampled_from([0.5, 1.5, 2.0, 29.0, 31.0]))
    def wait(self, seconds):
        self.shell.wait(seconds)

    @precondition(lambda self: len(self.books.calls) > 4)
    @rule(sure=st.sampled_from([False, False, False, True]))
    def end_life(self, sure):
        if sure:
            self.shell.end_life()

    def teardown(self):
        if hasattr(self, "shell"):
            self.shell.settle()
