"""Whole requests in process: the block cycle, its counts, its end, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from common.core.ids import RequestId
from common.core.params import CacheMode, ConfidenceQuota, ConfidenceThreshold, RandomReveal
from common.core.work import FinishReason, StepDelta
from common.engine.engine import Engine
from common.engine.generator import BatchGenerator, GenerationResult, LocalGenerator
from common.errors import InvalidRequest
from tests.engine.checkpoints import write_checkpoint
from tests.engine.runs import STRATEGIES, random_request, request


@pytest.fixture
def engine(golden_engine: Callable[[str], Engine]) -> Engine:
    return golden_engine("llada-gqa")


def generate(engine, spec) -> tuple[list[StepDelta], GenerationResult]:
    events = list(LocalGenerator(engine).generate(spec))
    assert isinstance(events[-1], GenerationResult)
    return [event for event in events if isinstance(event, StepDelta)], events[-1]


def test_one_prefill_and_five_decodes_are_six_forwards(engine):
    """Invariant 16: a block of 6 at one token a step."""
    spec = request(max_tokens=6, block_length_tokens=6, strategy=ConfidenceQuota(1))
    deltas, result = generate(engine, spec)
    assert (result.prefill_forwards, result.decode_forwards, len(deltas)) == (1, 5, 6)
    assert [delta.step for delta in deltas] == [0, 1, 2, 3, 4, 5]


def test_blocks_follow_each_other(engine):
    """Invariant 17: prompt 2, 64 to generate, block 32: canvas (2, 34), then (34, 66)."""
    spec = request((4, 5), max_tokens=64, strategy=ConfidenceQuota(8))
    deltas, result = generate(engine, spec)
    assert spec.canvas_tokens == 66
    assert [sorted({position // 32 for position in delta.positions}) for delta in deltas] == [[0]] * 4 + [[1]] * 4
    assert (result.prefill_forwards, result.decode_forwards) == (2, 6)


def test_a_prefill_that_finishes_its_block_never_decodes(engine):
    """Invariant 13."""
    deltas, result = generate(engine, request(max_tokens=64, strategy=ConfidenceQuota(32)))
    assert (result.prefill_forwards, result.decode_forwards, len(deltas)) == (2, 0, 2)


@pytest.mark.parametrize("mode", list(CacheMode))
@pytest.mark.parametrize("strategy", [*STRATEGIES, ConfidenceThreshold(1.0)], ids=str)
def test_every_request_ends_and_its_deltas_are_its_output(engine, mode, strategy):
    spec = request(max_tokens=23, block_length_tokens=8, cache_mode=mode, strategy=strategy)
    deltas, result = generate(engine, spec)
    assert all(delta.positions and list(delta.positions) == sorted(delta.positions) for delta in deltas)
    tokens: dict[int, int] = {}
    for delta in deltas:
        assert not tokens.keys() & set(delta.positions)
        tokens |= dict(zip(delta.positions, delta.token_ids, strict=True))
        assert all(0.0 <= confidence <= 1.0 for confidence in delta.confidences)
    assert result.token_ids == tuple(tokens[position] for position in range(23))
    assert len(deltas) == result.prefill_forwards + result.decode_forwards <= 24
    assert engine.config.mask_token_id not in result.token_ids


def test_output_is_cut_inside_the_last_block(engine):
    long = generate(engine, request(max_tokens=32, strategy=ConfidenceQuota(1)))[1]
    cut = generate(engine, request(max_tokens=20, strategy=ConfidenceQuota(1)))[1]
    assert cut.token_ids == long.token_ids[:20]
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.decode_forwards <= long.decode_forwards


@pytest.fixture
def stopping(tmp_path) -> tuple[Engine, tuple[int, ...], int]:
    """An engine whose EOS is a token that a certain greedy run puts into its second block, and that run's output."""
    spec = request((7, 8, 9), max_tokens=64, block_length_tokens=16)
    plain = Engine.load(write_checkpoint(tmp_path / "plain", "llada-gqa"), device="cpu", dtype=None, num_pages=8)
    output = LocalGenerator(plain).run(spec).token_ids
    eos = next(token for token in output[16:32] if token not in output[:16])
    model_dir = write_checkpoint(tmp_path / "stopping", "llada-gqa", eos_token_id=eos)
    return Engine.load(model_dir, device="cpu", dtype=None, num_pages=8), output, eos


def test_eos_ends_the_request_as_the_full_run_cut_there(stopping):
    engine, output, eos = stopping
    spec = request((7, 8, 9), max_tokens=64, block_length_tokens=16, ignore_eos=False)
    deltas, result = generate(engine, spec)
    assert result.token_ids == output[: output.index(eos) + 1]
    assert result.finish_reason is FinishReason.STOP
    assert result.prefill_forwards == 2 and max(position for delta in deltas for position in delta.positions) < 32


def test_eos_is_ignored_on_request(stopping):
    engine, output, _ = stopping
    result = generate(engine, request((7, 8, 9), max_tokens=64, block_length_tokens=16))[1]
    assert result.token_ids == output and result.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_resumed_request_goes_on_from_its_committed_blocks(engine, temperature):
    whole = request(max_tokens=48, block_length_tokens=16, temperature=temperature, seed=5)
    full = generate(engine, whole)[1]
    committed = full.token_ids[:16]
    resumed = generate(
        engine,
        request(max_tokens=48, block_length_tokens=16, temperature=temperature, seed=5, committed_token_ids=committed),
    )[1]
    assert resumed.token_ids == full.token_ids and resumed.prefill_forwards == 2


def test_tokens_already_shown_are_pinned(engine):
    shown = ((0, 17), (5, 23))
    deltas, result = generate(engine, request(max_tokens=16, block_length_tokens=8, shown=shown))
    assert (result.token_ids[0], result.token_ids[5]) == (17, 23)
    assert not {0, 5} & {position for delta in deltas[:1] for position in delta.positions}
    assert sum(len(delta.positions) for delta in deltas) == 14


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_token_ids": ()}, "prompt_token_ids"),
        ({"prompt_token_ids": (512,)}, "prompt_token_ids"),
        ({"prompt_token_ids": (-1,)}, "prompt_token_ids"),
        ({"prompt_token_ids": (3, 511)}, "prompt_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"block_length_tokens": 0}, "block_length_tokens"),
        ({"strategy": ConfidenceThreshold(float("nan"))}, "confidence_threshold"),
        ({"strategy": ConfidenceQuota(0)}, "confidence_quota"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"max_tokens": 512}, "max_tokens"),
    ],
)
def test_bad_input_is_refused_by_field_before_any_forward(engine, changes, field):
    engine.pool.tensor.zero_()
    with pytest.raises(InvalidRequest) as caught:
        LocalGenerator(engine).run(request(**changes))
    assert caught.value.field == field
    assert engine.pool.tensor.count_nonzero() == 0


def test_random_reveal_repeats_for_a_seed(engine):
    specs = [request(strategy=RandomReveal(), temperature=1.3, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (generate(engine, spec) for spec in specs)
    assert first == again and first[1].token_ids != other[1].token_ids


def test_a_batch_gives_every_request_its_solo_result(engine):
    """More requests than the batch and than the pool hold at once; some end at a prefill, some after many blocks."""
    rng = random.Random(8)
    specs = [random_request(rng, f"r{number}", vocab=500) for number in range(14)]
    assert sum(engine.pool.pages_for(spec.canvas_tokens) for spec in specs) > engine.pool.num_pages
    results = list(BatchGenerator(engine, max_batch_size=5).generate(specs))
    assert sorted(spec.request_id for spec, _ in results) == sorted(spec.request_id for spec in specs)
    for spec, result in results:
        assert result == LocalGenerator(engine).run(spec)


def test_a_batch_ends_with_one_that_was_wholly_shown(engine):
    """Tokens already shown may leave nothing to compute."""
    shown = tuple((position, 40 + position) for position in range(8))
    whole = request(request_id=RequestId("shown"), max_tokens=8, block_length_tokens=8, shown=shown)
    new = request(request_id=RequestId("new"), max_tokens=8, block_length_tokens=8)
    results = dict(BatchGenerator(engine, max_batch_size=2).generate([whole, new]))
    assert results[whole].token_ids == tuple(range(40, 48)) and results[whole].prefill_forwards == 0
    assert results[new] == LocalGenerator(engine).run(new)


def test_a_batch_is_refused_whole_before_any_forward(engine):
    engine.pool.tensor.zero_()
    with pytest.raises(InvalidRequest, match="max_tokens"):
        list(
            BatchGenerator(engine, max_batch_size=2).generate(
                [request(), request(request_id=RequestId("bad"), max_tokens=0)]
            )
        )
    assert engine.pool.tensor.count_nonzero() == 0


def test_revealed_positions_behind_the_cut_are_counted(engine):
    """Two forwards reveal two whole blocks of 16, twelve positions of them behind max_tokens."""
    spec = request(max_tokens=20, block_length_tokens=16, strategy=ConfidenceQuota(16))
    result = generate(engine, spec)[1]
    assert (len(result.token_ids), result.prefill_forwards, result.decode_forwards) == (20, 2, 0)
    assert result.revealed_tokens == 32
