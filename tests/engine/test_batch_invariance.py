"""A request's logits are the same, bit for bit, alone and in any mixed batch, on one thread and on two."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from common.core.params import CacheMode, RandomReveal
from common.engine.engine import Engine, StepResult
from tests.engine.checkpoints import GOLDEN_NAMES
from tests.engine.runs import STRATEGIES, BlockRun, random_request, request


@dataclass(frozen=True, slots=True)
class Trace:
    """All steps of one request, and its output."""

    steps: list[StepResult]
    token_ids: list[int]


def logits_of(result: StepResult) -> torch.Tensor:
    assert result.logits is not None
    return result.logits


def run_solo(engine: Engine, specs, *, threads: int) -> dict[str, Trace]:
    torch.set_num_threads(threads)
    traces = {}
    for spec in specs:
        run = BlockRun(engine, spec, list(range(engine.pool.pages_for(spec.canvas_tokens))))
        steps = []
        while run.state is not None:
            (result,) = engine.step([run.state], keep_logits=True)
            steps.append(result)
            run.accept(result.positions, result.tokens)
        traces[spec.request_id] = Trace(steps, run.generated)
    return traces


def run_batched(engine: Engine, specs, *, threads: int, rng: random.Random) -> dict[str, Trace]:
    """Requests sit iterations out at random, stand in random order, on pages scattered over the pool."""
    torch.set_num_threads(threads)
    free = rng.sample(range(engine.pool.num_pages), engine.pool.num_pages)
    runs = []
    for spec in specs:
        pages = [free.pop() for _ in range(engine.pool.pages_for(spec.canvas_tokens))]
        runs.append(BlockRun(engine, spec, pages))
    steps: dict[str, list[StepResult]] = {spec.request_id: [] for spec in specs}
    while active := [run for run in runs if run.state is not None]:
        batch = rng.sample(active, rng.randint((len(active) + 1) // 2, len(active)))
        results = engine.step([run.state for run in batch if run.state is not None], keep_logits=True)
        for run, result in zip(batch, results, strict=True):
            steps[run.spec.request_id].append(result)
            run.accept(result.positions, result.tokens)
    return {run.spec.request_id: Trace(steps[run.spec.request_id], run.generated) for run in runs}


def assert_same(solo: dict[str, Trace], batched: dict[str, Trace]) -> None:
    assert solo.keys() == batched.keys()
    for name, alone in solo.items():
        together = batched[name]
        assert alone.token_ids == together.token_ids
        for one, other in zip(alone.steps, together.steps, strict=True):
            assert torch.equal(logits_of(one), logits_of(other))
            assert (one.step, one.is_prefill, one.positions) == (other.step, other.is_prefill, other.positions)
            assert (one.tokens, one.confidences) == (other.tokens, other.confidences)


@pytest.mark.parametrize("base", GOLDEN_NAMES)
@pytest.mark.parametrize(("solo_threads", "batch_threads", "rounds"), [(1, 1, 4), (1, 2, 1), (2, 2, 1)])
def test_random_mixes(wide_engine, base, solo_threads, batch_threads, rounds):
    engine = wide_engine(base)
    rng = random.Random(f"{base}{solo_threads}{batch_threads}")
    for _ in range(rounds):
        count = 7 if solo_threads == batch_threads == 1 else 4
        specs = [random_request(rng, f"r{number}", vocab=500) for number in range(count)]
        solo = run_solo(engine, specs, threads=solo_threads)
        assert_same(solo, run_batched(engine, specs, threads=batch_threads, rng=rng))


@pytest.mark.parametrize("base", GOLDEN_NAMES)
def test_every_strategy_mode_and_temperature_in_one_batch(wide_engine, base):
    engine = wide_engine(base)
    specs = [
        request(
            tuple(range(1, 9 + 3 * number)),
            request_id=f"{strategy}{mode}{temperature}",
            strategy=strategy,
            cache_mode=mode,
            temperature=temperature,
            seed=number,
        )
        for number, (strategy, mode, temperature) in enumerate(
            (strategy, mode, temperature) for strategy in STRATEGIES for mode in CacheMode for temperature in (0.0, 1.0)
        )
    ]
    solo = run_solo(engine, specs, threads=1)
    assert_same(solo, run_batched(engine, specs, threads=1, rng=random.Random(1)))


def test_a_batch_large_enough_for_threads_in_every_kernel(wide_engine):
    engine = wide_engine("llada-gqa")
    specs = [
        request(tuple(range(1, 140 + number)), request_id=f"r{number}", strategy=STRATEGIES[0]) for number in range(7)
    ]
    solo = run_solo(engine, specs, threads=1)
    runs = [BlockRun(engine, spec, list(range(18 * number, 18 * number + 18))) for number, spec in enumerate(specs)]
    torch.set_num_threads(2)
    results = engine.step([run.state for run in runs if run.state is not None], keep_logits=True)
    for spec, result in zip(specs, results, strict=True):
        expected = solo[spec.request_id].steps[0]
        assert torch.equal(logits_of(result), logits_of(expected))
        assert result.tokens == expected.tokens


def test_prefills_and_decodes_share_one_forward(golden_engine):
    """Invariant 14: a prefill and a decode in one batch, one sampler call, each as if alone."""
    engine = golden_engine("llada-gqa")
    specs = [request((5, 6, 7), request_id="a"), request((8, 9), request_id="b", block_length_tokens=8, max_tokens=8)]
    solo = run_solo(engine, specs, threads=1)
    first, second = BlockRun(engine, specs[0], [4, 2, 9]), BlockRun(engine, specs[1], [3])
    (result,) = engine.step([first.state])
    first.accept(result.positions, result.tokens)
    decode, prefill = engine.step([first.state, second.state], keep_logits=True)
    assert (decode.is_prefill, decode.step, prefill.is_prefill, prefill.step) == (False, 1, True, 0)
    assert torch.equal(logits_of(decode), logits_of(solo["a"].steps[1]))
    assert torch.equal(logits_of(prefill), logits_of(solo["b"].steps[0]))


@pytest.mark.parametrize("base", GOLDEN_NAMES)
def test_garbage_in_pages_and_pad_slots_changes_nothing(wide_engine, base):
    """NaN everywhere in the pool, so also in the unused slots of each request's last page."""
    engine = wide_engine(base)
    rng = random.Random(base)
    specs = [random_request(rng, f"r{number}", vocab=500) for number in range(6)]
    engine.pool.tensor.zero_()
    clean = run_solo(engine, specs, threads=1)
    engine.pool.tensor.fill_(float("nan"))
    dirty = run_batched(engine, specs, threads=1, rng=rng)
    engine.pool.tensor.zero_()
    assert_same(clean, dirty)
    assert all(torch.isfinite(logits_of(step)).all() for trace in dirty.values() for step in trace.steps)


def test_torchs_global_random_state_neither_matters_nor_changes(golden_engine):
    engine = golden_engine("dream-gqa")
    specs = [request(request_id=name, strategy=RandomReveal(), temperature=1.0, seed=7) for name in ("a", "b")]
    torch.manual_seed(1)
    first = run_solo(engine, specs, threads=1)
    before = torch.manual_seed(2).get_state()
    second = run_solo(engine, specs, threads=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(first, second)
    assert first["a"].token_ids == first["b"].token_ids


def test_different_seeds_differ(golden_engine):
    engine = golden_engine("llada-mha")
    specs = [request(request_id=f"r{seed}", temperature=1.0, seed=seed) for seed in range(6)]
    outputs = {tuple(trace.token_ids) for trace in run_solo(engine, specs, threads=1).values()}
    assert len(outputs) == len(specs)
