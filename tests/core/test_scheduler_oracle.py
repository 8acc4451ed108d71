"""The scheduler against the paper cluster: random happenings, and mutants that must be caught."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common.core.ids import ServingMode
from tests.core.random_cluster import RandomCluster, random_options
from tests.core.scheduler_mutants import MUTANTS, STORMS, killer_of

SEEDS = st.integers(min_value=0, max_value=2**20)


class ClusterMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens; the oracle inside `RandomCluster` judges every effect."""

    @initialize(mode=st.sampled_from(list(ServingMode)), seed=SEEDS)
    def begin(self, mode: ServingMode, seed: int) -> None:
        rng = random.Random(seed)
        self.cluster = RandomCluster(mode, rng, **random_options(rng))
        for _ in range(3):
            self.cluster.start_worker()

    def _do(self, seed: int, happening: Callable[[], None]) -> None:
        self.cluster.rng = random.Random(seed)
        happening()

    @rule(seed=SEEDS)
    def submit(self, seed: int) -> None:
        self._do(seed, self.cluster.submit)

    @rule(seed=SEEDS, times=st.integers(1, 6))
    def answer(self, seed: int, times: int) -> None:
        self.cluster.rng = random.Random(seed)
        for _ in range(times):
            self.cluster.answer()

    @rule(seed=SEEDS)
    def fail(self, seed: int) -> None:
        self._do(seed, self.cluster.fail)

    @rule(seed=SEEDS)
    def cancel(self, seed: int) -> None:
        self._do(seed, self.cluster.cancel)

    @rule(seed=SEEDS)
    def advance(self, seed: int) -> None:
        self._do(seed, self.cluster.advance)

    @rule(seed=SEEDS)
    def echo(self, seed: int) -> None:
        self._do(seed, self.cluster.echo)

    @rule(seed=SEEDS)
    def start_worker(self, seed: int) -> None:
        self._do(seed, self.cluster.start_worker)

    @rule(seed=SEEDS)
    def repeat_worker(self, seed: int) -> None:
        self._do(seed, self.cluster.repeat_worker)

    @rule(seed=SEEDS)
    def lose(self, seed: int) -> None:
        self._do(seed, self.cluster.lose)

    @rule(seed=SEEDS)
    def drain(self, seed: int) -> None:
        self._do(seed, self.cluster.drain)

    @rule(seed=SEEDS)
    def end_lease(self, seed: int) -> None:
        self._do(seed, self.cluster.end_lease)

    @invariant()
    def conserves(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.oracle.core.check_conservation()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.rest()
            self.cluster.oracle.core.check_conservation()


ClusterMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestClusterMachine = ClusterMachine.TestCase


@pytest.mark.parametrize("mode", list(ServingMode))
@pytest.mark.parametrize("seed", range(STORMS))
def test_a_storm_of_happenings_ends_with_every_request_ended_once_and_nothing_held(
    mode: ServingMode, seed: int
) -> None:
    cluster = RandomCluster(mode, random.Random(seed))
    cluster.run(300)
    cluster.oracle.core.check_conservation()
    cluster.rest()
    cluster.oracle.core.check_conservation()
    assert cluster.oracle.ended > 20


@pytest.mark.parametrize("mode", list(ServingMode))
@pytest.mark.parametrize("seed", range(STORMS))
def test_a_storm_under_any_options_ends_every_request_once_and_holds_nothing(mode: ServingMode, seed: int) -> None:
    rng = random.Random(seed)
    cluster = RandomCluster(mode, rng, **random_options(rng))
    cluster.run(300)
    cluster.rest()
    cluster.oracle.core.check_conservation()
    assert cluster.oracle.ended > 20


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_kills_the_mutant(name: str) -> None:
    # The unmutated core survives these very runs: they are those of the storms above.
    assert killer_of(name) is not None
