"""Options of the scheduler, each seen through events and effects (invariants 12, 21 to 23, 26, 27 among them)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from common.core import effects as fx
from common.core import events as ev
from common.core.ids import Role, ServingMode
from common.core.options import Dispatch, QueueOrder
from common.core.work import FinishReason, RequestSpec
from common.errors import Reason, TooLong
from tests.core.samples import iteration_report, request_spec, worker_spec
from tests.core.stage import Stage, decoder, decoding, only, prefiller, targets

COLOCATED, DISAGGREGATED, HYBRID = ServingMode.COLOCATED, ServingMode.DISAGGREGATED, ServingMode.HYBRID
EVERY_ORDER = list(QueueOrder)


def asks(name: str, *, tenant: str = "", priority: int = 0, prompt: int = 8, blocks: int = 1) -> RequestSpec:
    spec = request_spec(name, prompt=prompt, max_tokens=4 * blocks, block=4)
    return replace(spec, tenant=tenant, priority=priority)


def call(effects: list[fx.SchedulerEffect]) -> fx.CallDecode:
    return only(effects, fx.CallDecode)


def serve_in_turn(stage: Stage, running: fx.CallDecode) -> list[str]:
    """One block after the other on a single worker that holds one at a time; the order of requests."""
    order = [str(running.work.attempt.request_id)]
    while True:
        last = running.work.block_start_position + 4 >= running.work.max_tokens
        told = stage.run_block(running, FinishReason.LENGTH if last else None)
        calls = [effect for effect in told if isinstance(effect, fx.CallDecode)]
        if not calls:
            return order
        (running,) = calls
        order.append(str(running.work.attempt.request_id))


def one_at_a_time(pages: int = 5, **settings: object) -> Stage:
    """A worker whose pool holds the canvas of one small request (3 pages), not of two."""
    return Stage(COLOCATED, decoder("d", pages=pages), **settings)


class TestOrder:
    def test_arrival_lets_an_old_requests_next_block_go_before_newcomers(self) -> None:
        stage = one_at_a_time()
        first = call(stage.submit(asks("old", blocks=2)))
        stage.now = 1.0
        stage.submit(asks("new"))
        assert serve_in_turn(stage, first) == ["old", "old", "new"]

    def test_12_the_shortest_rest_goes_first(self) -> None:
        stage = one_at_a_time(pages=6, queue_order=QueueOrder.FEWEST_REMAINING_BLOCKS)
        running = call(stage.submit(asks("running")))
        stage.now = 1.0
        stage.submit(asks("block 0 of 4", blocks=4))
        stage.now = 2.0
        late = replace(asks("block 3 of 4", blocks=4), committed_token_ids=tuple(range(12)))
        stage.submit(late)
        assert serve_in_turn(stage, running)[:3] == ["running", "block 3 of 4", "block 0 of 4"]

    @pytest.mark.parametrize("order", EVERY_ORDER)
    def test_a_higher_priority_goes_first_and_equals_by_order(self, order: QueueOrder) -> None:
        stage = one_at_a_time(queue_order=order)
        running = call(stage.submit(asks("running")))
        for index, priority in enumerate([0, 5, -1, 5, 0]):
            stage.now = float(index + 1)
            stage.submit(asks(f"{priority}@{index}", priority=priority))
        assert serve_in_turn(stage, running) == ["running", "5@1", "5@3", "0@0", "0@4", "-1@2"]

    def test_after_the_maximum_wait_a_low_priority_goes_before_all_that_are_younger(self) -> None:
        stage = one_at_a_time(max_queue_wait_s=10.0)
        running = call(stage.submit(asks("running")))
        stage.now = 1.0
        stage.submit(asks("low", priority=-1))
        for index in range(3):
            stage.now = 8.0 + index
            stage.submit(asks(f"high{index}", priority=1))
        stage.now = 10.999
        told = stage.run_block(running, FinishReason.LENGTH)
        assert targets(told) == [("high0", "d")]
        stage.now = 11.0
        assert serve_in_turn(stage, call(told)) == ["high0", "low", "high1", "high2"]

    def test_the_maximum_wait_does_not_pass_older_requests(self) -> None:
        stage = one_at_a_time(max_queue_wait_s=10.0)
        first = call(stage.submit(asks("old", blocks=3)))
        stage.now = 1.0
        stage.submit(asks("new"))
        stage.now = 100.0
        assert serve_in_turn(stage, first) == ["old", "old", "old", "new"]

    @pytest.mark.parametrize("order", EVERY_ORDER)
    def test_a_queued_request_ends_at_its_deadline_and_frees_the_head(self, order: QueueOrder) -> None:
        stage = one_at_a_time(queue_order=order)
        stage.submit(asks("running"))
        stage.submit(replace(asks("big", prompt=14, tenant="a", priority=1), deadline_s=5.0))
        stage.submit(replace(asks("other", tenant="b"), deadline_s=6.0))
        assert stage.core.next_wakeup() == 5.0 and stage.tick(4.999) == []
        ended = only(stage.tick(5.0), fx.FailRequest)
        assert (ended.request_id, ended.reason) == ("big", Reason.DEADLINE_EXCEEDED)
        assert only(stage.tick(6.0), fx.FailRequest).request_id == "other"


class TestTenants:
    def test_one_tenants_flood_does_not_hold_another_back(self) -> None:
        stage = one_at_a_time(tenant_quantum_tokens=12)
        running = call(stage.submit(asks("running", tenant="flood")))
        for index in range(20):
            stage.submit(asks(f"flood{index:02d}", tenant="flood"))
        stage.now = 1.0
        for index in range(3):
            stage.submit(asks(f"calm{index}", tenant="calm"))
        order = serve_in_turn(stage, running)
        assert [name for name in order[:7] if name.startswith("calm")] == ["calm0", "calm1", "calm2"]
        assert len(order) == 24

    @pytest.mark.parametrize("quantum", [1, 7, 12, 500])
    def test_shares_follow_the_weights_in_tokens_not_in_requests(self, quantum: int) -> None:
        stage = Stage(COLOCATED, decoder("d", pages=9), tenant_quantum_tokens=quantum, tenant_weights={"heavy": 3})
        running = call(stage.submit(asks("first", tenant="x", prompt=32)))
        for index in range(200):
            stage.submit(asks(f"heavy{index:03d}", tenant="heavy", prompt=32))  # canvas 36
            stage.submit(asks(f"light{index:03d}", tenant="light", prompt=20))  # canvas 24
        order = serve_in_turn(stage, running)[1:]
        tokens = Counter[str]()
        for name in order:
            tenant, canvas = ("heavy", 36) if name.startswith("heavy") else ("light", 24)
            tokens[tenant] += canvas
            if tokens["heavy"] < 36 * 200:
                assert abs(tokens["heavy"] / 3 - tokens["light"]) <= 2 * (quantum + 36)
        assert len(order) == 400

    def test_a_tenant_alone_is_served_as_if_there_were_none(self) -> None:
        names = [f"r{index}" for index in range(5)]
        orders = []
        for tenant in ("", "only"):
            stage = one_at_a_time(tenant_quantum_tokens=1)
            running = call(stage.submit(asks("first", tenant=tenant)))
            for name in names:
                stage.submit(asks(name, tenant=tenant))
            orders.append(serve_in_turn(stage, running))
        assert orders[0] == orders[1] == ["first", *names]

    def test_the_head_of_the_line_is_strict_across_tenants(self) -> None:
        stage = Stage(COLOCATED, decoder("d", pages=6))
        stage.submit(asks("running", prompt=8))  # 3 pages
        assert stage.submit(asks("big", tenant="a", prompt=16)) == []  # 5 pages
        assert stage.submit(asks("small", tenant="b", prompt=1)) == []


class TestPlacement:
    def test_21_a_prefill_worker_at_the_threshold_is_excluded_despite_its_pages(self) -> None:
        stage = Stage(
            HYBRID, prefiller("p1", pages=128), prefiller("p2", pages=8), decoder(), overload_threshold_tokens=16
        )
        assert targets(stage.submit(asks("a", prompt=12))) == [("a", "p1")]
        assert targets(stage.submit(asks("b", prompt=4))) == [("b", "p2")]
        assert targets(stage.submit(asks("c", prompt=4))) == [("c", "p2")]

    def test_22_overflow_goes_to_the_idle_decode_worker_not_to_the_roomy_one(self) -> None:
        workers = [prefiller("p"), decoder("d1", pages=128), decoder("d2", pages=64)]
        stage = Stage(HYBRID, *workers, overload_threshold_tokens=12)
        assert [targets(stage.submit(asks(name))) for name in "abc"] == [[("a", "p")], [("b", "d1")], [("c", "d2")]]

    def test_21_overflow_respects_the_threshold_of_decode_workers(self) -> None:
        stage = Stage(HYBRID, prefiller("p"), decoder("d"), overload_threshold_tokens=12)
        assert [targets(stage.submit(asks(name))) for name in "abc"] == [[("a", "p")], [("b", "d")], []]

    def test_23_without_overflow_it_stays_queued(self) -> None:
        stage = Stage(HYBRID, prefiller("p"), decoder("d"), overload_threshold_tokens=12, overflow_enabled=False)
        assert [targets(stage.submit(asks(name))) for name in "ab"] == [[("a", "p")], []]

    def test_26_a_blocked_head_holds_a_smaller_follower(self) -> None:
        stage = Stage(COLOCATED, decoder("d", pages=12))
        running = call(stage.submit(asks("running", prompt=28)))  # 8 pages
        assert stage.submit(asks("a head", prompt=28)) == stage.submit(asks("b small", prompt=12)) == []
        assert targets(stage.run_block(running, FinishReason.LENGTH)) == [("a head", "d"), ("b small", "d")]

    def test_27_an_older_continuation_beats_a_newer_arrival(self) -> None:
        stage = Stage(COLOCATED, decoder("d", pages=6))
        older = call(stage.submit(asks("older", prompt=16, blocks=2)))  # 6 pages
        stage.now = 1.0
        assert stage.submit(asks("newer", prompt=12)) == []  # 4 pages
        assert targets(stage.run_block(older)) == [("older", "d")]

    @pytest.mark.parametrize(("decoders", "placed"), [(2, []), (4, [("new", "d0")])])
    def test_28_overflow_leaves_what_a_finished_prefill_waits_for(
        self, decoders: int, placed: list[tuple[str, str]]
    ) -> None:
        readers = [decoder(f"d{index}", pages=6) for index in range(decoders)]
        stage = Stage(HYBRID, prefiller("p", pages=64), *readers, overload_threshold_tokens=1)
        prefill = only(stage.submit(asks("waits", prompt=16)), fx.CallPrefill)
        for index in range(decoders):
            stage.stepped(call(stage.submit(asks(f"filler{index}", prompt=4))), 0, [0])
        assert targets(stage.prefilled(prefill, [0])) == []
        assert targets(stage.submit(asks("busy", prompt=12))) == [("busy", "p")]
        # Each decode worker has 4 free pages, the finished prefill waits for 5: 8 - 5 < 4, but 16 - 5 >= 4.
        assert targets(stage.submit(asks("new", prompt=12))) == placed
        assert sum(worker.pages_free for worker in stage.core.view().workers if worker.spec.role is Role.DECODE) == (
            12 if placed else 8
        )

    def test_29_reports_change_no_tally(self) -> None:
        stage = Stage(COLOCATED, decoder("d", pages=16))
        running = call(stage.submit(asks("a")))
        before = stage.worker("d")
        assert stage.feed(ev.WorkerReported(life=running.target, report=iteration_report())) == []
        assert replace(stage.worker("d"), report=None) == before

    def test_30_a_retried_attempt_releases_exactly_what_it_reserved(self) -> None:
        stage = Stage(DISAGGREGATED, prefiller("p", pages=16), decoder("d", pages=16))
        _, decode = decoding(stage, "r")
        assert (stage.worker("p").pages_free, stage.worker("d").pages_free) == (12, 12)
        again = only(stage.fail(decode, Reason.KV_CHECKSUM), fx.ReleaseKv)
        assert again.attempt == decode.work.attempt
        assert (stage.worker("d").pages_free, stage.worker("d").live_blocks) == (16, 0)
        # The transfer's news come late: they concern nobody now.
        assert stage.received(decode) == stage.stepped(decode, 1, [1]) == []
        assert (stage.worker("p").pages_free, stage.worker("d").pages_free) == (16, 16)

    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            ("round_robin", ["p1", "p2", "p3", "p1"]),
            ("least_outstanding_tokens", ["p1", "p2", "p3", "p2"]),
            ("least_outstanding_requests", ["p1", "p2", "p3", "p2"]),
            ("least_length_sum", ["p1", "p2", "p3", "p2"]),
        ],
    )
    def test_every_prefill_placement_spreads(self, policy: str, expected: list[str]) -> None:
        workers = [prefiller(name, pages=32) for name in ("p1", "p2", "p3")]
        stage = Stage(DISAGGREGATED, *workers, decoder(), prefill_policy=policy)
        prompts = [24, 4, 12, 4]
        got = [targets(stage.submit(asks(f"r{i}", prompt=prompt)))[0][1] for i, prompt in enumerate(prompts)]
        assert got == expected

    def test_round_robin_of_decodes_has_its_own_turn(self) -> None:
        workers = [prefiller("p", pages=64), decoder("d1"), decoder("d2")]
        stage = Stage(DISAGGREGATED, *workers, decode_policy="round_robin")
        assert [decoding(stage, name)[1].target.worker_id for name in "abc"] == ["d1", "d2", "d1"]

    def test_topology_guarded_decodes_next_to_the_prefill(self) -> None:
        far, near = (replace(decoder(name), fast_link_domain=domain) for name, domain in (("d1", "x"), ("d2", "y")))
        stage = Stage(
            DISAGGREGATED, replace(prefiller(), fast_link_domain="y"), far, near, decode_policy="topology_guarded"
        )
        assert decoding(stage)[1].target.worker_id == "d2"

    def test_sticky_requests_stay_while_there_is_room(self) -> None:
        stage = Stage(COLOCATED, decoder("d1"), decoder("d2"), sticky_workers=True, colocated_policy="round_robin")
        running = call(stage.submit(asks("a", blocks=3)))
        for _ in range(2):
            told = stage.run_block(running)
            assert targets(told) == [("a", "d1")]
            running = call(told)
        other = call(stage.submit(asks("b", blocks=2)))
        assert other.target.worker_id == "d2"
        stage.feed(ev.WorkerDraining(life=other.target))
        assert targets(stage.run_block(other)) == [("b", "d1")]


class TestFixedCanvas:
    def test_every_canvas_has_the_same_generated_part(self) -> None:
        stage = Stage(COLOCATED, decoder("d", pages=16), max_gen_len_tokens=14)
        work = call(stage.submit(asks("a", prompt=8))).work
        assert (work.canvas_tokens, work.max_tokens, work.canvas_generated_tokens) == (8 + 16, 4, 16)
        assert stage.worker("d").pages_free == 16 - 6

    def test_it_ends_at_what_the_request_asks_for(self) -> None:
        stage = Stage(COLOCATED, decoder("d"), max_gen_len_tokens=16)
        running = call(stage.submit(asks("a", blocks=2)))
        assert serve_in_turn(stage, running) == ["a", "a"]
        stage.assert_idle()

    def test_more_than_that_is_refused(self) -> None:
        stage = Stage(COLOCATED, decoder("d"), max_gen_len_tokens=4)
        with pytest.raises(TooLong, match="at most 4 tokens") as refusal:
            stage.submit(asks("a", blocks=2))
        assert refusal.value.field == "max_tokens"


class TestLateDispatch:
    def stage(self, ahead: int = 2) -> Stage:
        roomy = replace(worker_spec("d", Role.DECODE, pages=256), token_budget_tokens=40)
        return Stage(COLOCATED, roomy, dispatch=Dispatch.LATE, dispatch_ahead=ahead)

    def test_a_worker_is_bound_to_what_it_admits_within_so_many_iterations(self) -> None:
        stage = self.stage()
        # Two decodes cost 4 each: 2 iterations admit 2 * (40 - 8) = 64 tokens.
        assert [targets(stage.submit(asks(name, prompt=26))) for name in "ab"] == [[("a", "d")], [("b", "d")]]
        assert stage.submit(asks("c", prompt=26)) == []
        eager = Stage(COLOCATED, decoder("d", pages=256), dispatch=Dispatch.EAGER)
        assert [len(targets(eager.submit(asks(name, prompt=26)))) for name in "abc"] == [1, 1, 1]

    def test_an_idle_worker_gets_a_canvas_of_any_length(self) -> None:
        assert targets(self.stage().submit(asks("a", prompt=500))) == [("a", "d")]

    def test_a_worker_that_saves_up_for_longer_gets_one_more_of_any_length_but_not_two(self) -> None:
        stage = self.stage()
        # A prefill of 72 is admitted in the second iteration, one of 76 in the third.
        stage.submit(asks("a", prompt=68))
        assert stage.submit(asks("b", prompt=500)) == []
        other = self.stage()
        told = [targets(other.submit(asks(name, prompt=prompt))) for name, prompt in [("a", 72), ("b", 500), ("c", 8)]]
        assert told == [[("a", "d")], [("b", "d")], []]

    def test_a_finished_prefill_and_a_reported_deficit_make_room(self) -> None:
        stage = self.stage()
        running = call(stage.submit(asks("a", prompt=60)))
        assert stage.submit(asks("b", prompt=26)) == stage.submit(asks("c", prompt=70)) == []
        assert targets(stage.stepped(running, 0, [0])) == [("b", "d")]
        life = running.target
        assert stage.feed(ev.WorkerReported(life=life, report=iteration_report(deficit_tokens=30))) == []
        told = stage.feed(ev.WorkerReported(life=life, report=iteration_report(deficit_tokens=40)))
        assert targets(told) == [("c", "d")]

    def test_a_larger_budget_makes_room(self) -> None:
        stage = self.stage()
        running = call(stage.submit(asks("a", prompt=26)))
        assert stage.submit(asks("b", prompt=70)) == []
        told = stage.feed(ev.WorkerReported(life=running.target, report=iteration_report(budget_tokens=80)))
        assert targets(told) == [("b", "d")]

    def test_a_prefill_worker_is_bound_to_two_batches(self) -> None:
        writer = replace(prefiller(pages=256), max_prefill_tokens_per_batch=30)
        stage = Stage(DISAGGREGATED, writer, decoder(pages=256), dispatch=Dispatch.LATE)
        assert [len(targets(stage.submit(asks(name, prompt=26)))) for name in "abc"] == [1, 1, 0]

    def test_what_a_dead_worker_strands_is_bounded(self) -> None:
        stage = self.stage()
        for index in range(50):
            stage.submit(asks(f"r{index:02d}", prompt=26))
        assert stage.worker("d").live_blocks == 2 and stage.core.queued_blocks == 48


@pytest.mark.parametrize("dispatch", list(Dispatch))
class TestWantedBlocks:
    """A worker with an adaptive budget says how much it wants."""

    def stage(self, dispatch: Dispatch, *, blocks: int, prefill_tokens: int = 0) -> tuple[Stage, fx.CallDecode]:
        stage = Stage(COLOCATED, decoder("d", pages=256), dispatch=dispatch)
        running = call(stage.submit(asks("a", prompt=26)))
        report = iteration_report(wanted_blocks=blocks, wanted_prefill_tokens=prefill_tokens)
        stage.feed(ev.WorkerReported(life=running.target, report=report))
        return stage, running

    def test_it_gets_one_prefill_at_a_time_of_any_length(self, dispatch: Dispatch) -> None:
        stage, running = self.stage(dispatch, blocks=3)
        assert stage.submit(asks("b", prompt=500)) == []
        assert targets(stage.stepped(running, 0, [0])) == [("b", "d")]

    def test_short_ones_come_together(self, dispatch: Dispatch) -> None:
        stage, _ = self.stage(dispatch, blocks=9, prefill_tokens=90)
        assert [len(targets(stage.submit(asks(name, prompt=26)))) for name in "bcd"] == [1, 1, 0]

    def test_no_more_blocks_than_it_wants(self, dispatch: Dispatch) -> None:
        stage, running = self.stage(dispatch, blocks=2)
        other = call(stage.submit(asks("b")) + stage.stepped(running, 0, [0]))
        assert stage.submit(asks("c")) == []
        assert targets(stage.stepped(other, 0, [0]) + stage.stepped(running, 1, [1, 2, 3])) == []
        assert targets(stage.completed(running, 1, FinishReason.LENGTH)) == [("c", "d")]

    def test_another_number_counts_at_once(self, dispatch: Dispatch) -> None:
        stage, running = self.stage(dispatch, blocks=1)
        assert stage.submit(asks("b")) == [] and targets(stage.stepped(running, 0, [0])) == []
        told = stage.feed(ev.WorkerReported(life=running.target, report=iteration_report(wanted_blocks=2)))
        assert targets(told) == [("b", "d")]
