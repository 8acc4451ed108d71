"""Placement policies and overflow: the worked figures of the reference notes (invariants 21 to 28)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from common.core.cluster import WorkerView
from common.core.ids import Role, WorkerId
from common.core.overflow import must_hold_back
from common.core.placement import COLOCATED_POLICIES, DECODE_POLICIES, PREFILL_POLICIES, BlockNeed, Policy
from common.core.roster import Roster
from tests.core.samples import worker_spec

PAGE = 4


def view(
    name: str,
    *,
    free: int,
    outstanding: int = 0,
    lengths: tuple[int, ...] = (),
    domain: str = "",
    role: Role = Role.DECODE,
) -> WorkerView:
    spec = worker_spec(name, role, pages=256, page_size=PAGE)
    return WorkerView(
        spec=replace(spec, fast_link_domain=domain),
        pages_free=free,
        outstanding_prefill_tokens=outstanding,
        active_decodes=0,
        draining=False,
        report=None,
        live_blocks=len(lengths),
        length_sum_tokens=sum(lengths),
    )


def need(canvas: int, **facts: object) -> BlockNeed:
    values = {"topology_alpha": 0.7, "length_slack": 0.1, **facts}
    return BlockNeed(canvas_tokens=canvas, **values)  # type: ignore[arg-type]  # by name in tests


def free_tokens(worker: WorkerView) -> int:
    return worker.pages_free * PAGE


def choose(policy: Policy, workers: list[WorkerView], what: BlockNeed) -> str | None:
    """The id of the chosen worker; the order of `workers` must not matter."""
    names = set()
    for order in (workers, workers[::-1]):
        roster = Roster(order, room=free_tokens, rank=policy.rank, grouped=policy.by_domain)
        chosen = policy.pick(roster, what)
        names.add(None if chosen is None else chosen.spec.life.worker_id)
    (name,) = names
    return name


EVERY_POLICY = sorted(COLOCATED_POLICIES.items())


def test_the_policies_are_those_of_the_notes() -> None:
    prefill = {"least_outstanding_tokens", "least_outstanding_requests", "least_length_sum", "round_robin"}
    decode = {"max_free_pages", "round_robin", "topology_guarded", "balanced_length"}
    assert set(PREFILL_POLICIES) == prefill and set(DECODE_POLICIES) == decode
    assert set(COLOCATED_POLICIES) == prefill | decode


@pytest.mark.parametrize(("name", "policy"), EVERY_POLICY)
def test_nobody_with_room_is_nobody(name: str, policy: Policy) -> None:
    assert choose(policy, [], need(1)) is None
    assert choose(policy, [view("a", free=1), view("b", free=0)], need(PAGE + 1)) is None


@pytest.mark.parametrize(("name", "policy"), EVERY_POLICY)
def test_equal_workers_are_told_apart_by_id(name: str, policy: Policy) -> None:
    assert choose(policy, [view(name, free=8) for name in "cab"], need(4)) == "a"


@pytest.mark.parametrize(("name", "policy"), EVERY_POLICY)
def test_a_barred_worker_is_never_chosen(name: str, policy: Policy) -> None:
    workers = [view(name, free=8) for name in "abc"]
    barred = frozenset({WorkerId("a"), WorkerId("b")})
    assert choose(policy, workers, need(4, barred=barred)) == "c"
    assert choose(policy, workers, need(4, barred=barred | {WorkerId("c")})) is None


@pytest.mark.parametrize(("name", "policy"), EVERY_POLICY)
def test_pages_are_counted_whole(name: str, policy: Policy) -> None:
    assert choose(policy, [view("a", free=2), view("b", free=3)], need(2 * PAGE + 1)) == "b"


def test_fewest_outstanding_tokens_wins_whatever_the_pages() -> None:
    workers = [view("a", free=128, outstanding=3), view("b", free=64)]
    assert choose(PREFILL_POLICIES["least_outstanding_tokens"], workers, need(16)) == "b"


def test_fewest_requests_wins_whatever_their_length() -> None:
    workers = [view("a", free=9, lengths=(4, 4)), view("b", free=8, lengths=(400,))]
    assert choose(PREFILL_POLICIES["least_outstanding_requests"], workers, need(4)) == "b"


def test_smallest_length_sum_wins_whatever_the_number() -> None:
    workers = [view("a", free=9, lengths=(400,)), view("b", free=8, lengths=(4, 4))]
    assert choose(PREFILL_POLICIES["least_length_sum"], workers, need(4)) == "b"


def test_most_free_pages_wins_for_decodes() -> None:
    workers = [view("a", free=8), view("b", free=9, outstanding=500)]
    assert choose(DECODE_POLICIES["max_free_pages"], workers, need(16)) == "b"


@pytest.mark.parametrize(
    ("previous", "chosen"), [(None, "a"), ("a", "c"), ("b", "c"), ("c", "d"), ("d", "a"), ("bb", "c"), ("z", "a")]
)
def test_round_robin_goes_on_after_the_last_one_over_those_with_room(previous: str | None, chosen: str) -> None:
    workers = [view("a", free=8), view("b", free=0), view("c", free=8), view("d", free=8)]
    assert choose(DECODE_POLICIES["round_robin"], workers, need(4, previous_worker_id=previous)) == chosen


class TestTopologyGuarded:
    """Invariant 24, and what it implies at its edges."""

    POLICY = DECODE_POLICIES["topology_guarded"]

    @pytest.mark.parametrize(("alpha", "near_free", "chosen"), [(0.7, 8, "near"), (0.9, 7, "roomy"), (0.7, 7, "near")])
    def test_24_a_fast_link_is_worth_some_memory(self, alpha: float, near_free: int, chosen: str) -> None:
        workers = [view("roomy", free=10, domain="y"), view("near", free=near_free, domain="x")]
        assert choose(self.POLICY, workers, need(PAGE, near_domain="x", topology_alpha=alpha)) == chosen

    def test_the_roomiest_of_the_near_ones_is_taken(self) -> None:
        workers = [view("a", free=8, domain="x"), view("b", free=9, domain="x"), view("c", free=10, domain="y")]
        assert choose(self.POLICY, workers, need(PAGE, near_domain="x")) == "b"

    def test_without_anybody_near_memory_decides(self) -> None:
        workers = [view("a", free=8, domain="x"), view("b", free=10, domain="y")]
        assert choose(self.POLICY, workers, need(PAGE, near_domain="z")) == "b"

    def test_without_a_declared_domain_a_host_is_one(self) -> None:
        spec = worker_spec("a", Role.DECODE)
        assert (spec.link_domain, replace(spec, fast_link_domain="island").link_domain) == ("a", "island")


class TestBalancedLength:
    """Invariant 25, and what it implies at its edges."""

    POLICY = DECODE_POLICIES["balanced_length"]

    def test_25_of_balanced_workers_the_nearest_mean_length_wins(self) -> None:
        workers = [view("a", free=64, lengths=(20,)), view("b", free=64, lengths=(34,))]
        assert choose(self.POLICY, workers, need(32, length_slack=0.4)) == "b"

    def test_25_a_worker_past_the_slack_is_excluded(self) -> None:
        # Projected sums 135 and 150; the limit is 148.5. The means are 50 and 38.3, so only the slack excludes b.
        workers = [view("a", free=64, lengths=(50, 50)), view("b", free=64, lengths=(38, 38, 39))]
        assert choose(self.POLICY, workers, need(35, length_slack=0.1)) == "a"
        assert choose(self.POLICY, workers, need(35, length_slack=0.12)) == "b"

    def test_an_idle_worker_is_a_perfect_match(self) -> None:
        workers = [view("a", free=64, lengths=(33,)), view("b", free=64)]
        assert choose(self.POLICY, workers, need(32, length_slack=5.0)) == "b"


class TestHoldBack:
    """Invariant 28."""

    @pytest.mark.parametrize(("free", "held"), [(8, True), (16, False), (9, False)])
    def test_28_overflow_leaves_what_finished_prefills_wait_for(self, free: int, held: bool) -> None:
        held_back = must_hold_back(free_tokens=free * PAGE, backlog_tokens=5 * PAGE, need_tokens=4 * PAGE)
        assert held_back is held


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("name", "policy"), EVERY_POLICY)
def test_a_roster_finds_what_a_look_at_everybody_finds(name: str, policy: Policy, seed: int) -> None:
    rng = random.Random(seed)
    names = [f"w{number:02d}" for number in range(rng.randrange(1, 20))]
    loads = {name: view(name, free=rng.randrange(9)) for name in names}

    def now(worker: WorkerView) -> WorkerView:
        return loads[worker.spec.life.worker_id]

    roster = Roster(list(loads.values()), room=lambda w: free_tokens(now(w)), rank=lambda w: policy.rank(now(w)))
    for _ in range(30):
        changed = rng.choice(names)
        loads[changed] = view(changed, free=rng.randrange(9), outstanding=rng.randrange(5), lengths=(rng.randrange(5),))
        roster.refresh(WorkerId(changed))
        canvas, previous = rng.randrange(1, 9 * PAGE), rng.choice([None, *names])
        able = [name for name in names if free_tokens(loads[name]) >= canvas]
        best = min(able, key=lambda name: (policy.rank(loads[name]), name), default=None)
        after = min(able, key=lambda name: (previous is not None and name <= previous, name), default=None)
        assert [id_of(worker) for worker in roster.with_room(canvas)] == able
        assert id_of(roster.best(canvas)) == best
        assert id_of(roster.following(None if previous is None else WorkerId(previous), canvas)) == after


def id_of(worker: WorkerView | None) -> str | None:
    return None if worker is None else worker.spec.life.worker_id
