"""Engine.step's contract beyond numbers: continuing elsewhere, layer callbacks, bugs refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from common.core.ids import BlockAttempt, RequestId
from common.core.params import CacheMode, ConfidenceQuota, SamplingParams
from common.core.work import StepDelta
from common.engine.engine import Engine, StepResult
from common.engine.models.transformer import Transformer
from tests.engine.checkpoints import GOLDEN_DIR

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


@pytest.fixture
def engine(golden_engine: Callable[[str], Engine]) -> Engine:
    return golden_engine("dream-gqa")


def logits_of(result: StepResult) -> torch.Tensor:
    assert result.logits is not None
    return result.logits


def open_block(engine: Engine, pages, *, name="r", mode=CacheMode.DUAL, **changes):
    values = {
        "attempt": BlockAttempt(RequestId(name), 0, 0),
        "prompt_token_ids": PROMPT,
        "generated_token_ids": (),
        "canvas_tokens": 40,
        "block_length_tokens": 32,
        "block": 0,
        "cache_mode": mode,
        "sampling": SamplingParams(strategy=ConfidenceQuota(5), temperature=0.0, seed=0),
        "page_ids": pages,
    }
    return engine.open_block(**(values | changes))


@pytest.mark.parametrize("mode", [CacheMode.DUAL, CacheMode.PREFIX])
def test_a_decode_goes_on_from_pages_transferred_to_another_engine(engine, mode):
    other = Engine.load(GOLDEN_DIR / "dream-gqa", device="cpu", dtype=None, num_pages=8)
    state = open_block(engine, [1, 2, 3], mode=mode)
    (prefill,) = engine.step([state])
    buffers = other.pool.writable_runs([7, 0, 5], range(3))
    stream = memoryview(b"".join(engine.pool.read_pages([1, 2, 3], range(3))))
    for buffer in buffers:
        buffer[:], stream = stream[: len(buffer)], stream[len(buffer) :]
    other.pool.commit_runs([7, 0, 5], range(3), buffers)
    revealed = dict(zip(prefill.positions, prefill.tokens, strict=True))
    moved = open_block(other, [7, 0, 5], mode=mode, revealed=revealed, next_step=1)
    for _ in range(3):
        (here,), (there,) = engine.step([state], keep_logits=True), other.step([moved], keep_logits=True)
        assert torch.equal(logits_of(here), logits_of(there)) and here.delta == there.delta


def test_mode_none_goes_on_anywhere_without_any_transfer(engine):
    state = open_block(engine, [1, 2, 3], mode=CacheMode.NONE)
    (first,) = engine.step([state])
    revealed = dict(zip(first.positions, first.tokens, strict=True))
    engine.pool.tensor[:, :, 4:7] = float("nan")
    moved = open_block(engine, [4, 5, 6], name="s", mode=CacheMode.NONE, revealed=revealed, next_step=1)
    here, there = engine.step([state, moved], keep_logits=True)
    assert torch.equal(logits_of(here), logits_of(there))


def test_each_layer_is_announced_once_its_kv_is_in_the_pool(engine):
    state = open_block(engine, [1, 2, 3])
    engine.pool.tensor.zero_()
    filled = []

    def on_layer(layer: int) -> None:
        filled.append((layer, [bool(engine.pool.tensor[index].count_nonzero()) for index in range(3)]))

    engine.step([state], on_layer=on_layer)
    assert filled == [(0, [True, False, False]), (1, [True, True, False]), (2, [True, True, True])]


def test_a_prefill_writes_all_its_slots_and_a_dual_decode_only_its_span(engine):
    state = open_block(engine, [1, 2, 3], block_length_tokens=16)
    engine.pool.tensor.zero_()
    engine.step([state])
    slots = engine.pool.tensor[0, 0].flatten(0, 1).flatten(1)
    assert slots.any(dim=1).nonzero().flatten().tolist() == list(range(16, 16 + 40))
    engine.pool.tensor.zero_()
    engine.step([state])
    # block 8..24 of the canvas, and the row before it: Dream's lookback
    assert slots.any(dim=1).nonzero().flatten().tolist() == list(range(16 + 7, 16 + 24))


def test_the_vocabulary_is_computed_for_masked_positions_only(engine, monkeypatch):
    """Of a prefill of 40 rows and of a decode of 33, the lm_head sees what is sampled (padded to whole 8)."""
    seen = []
    lm_head = Transformer.logits

    def watched(transformer: Transformer, rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows.shape[0])
        return lm_head(transformer, rows)

    monkeypatch.setattr(Transformer, "logits", watched)
    first, second = open_block(engine, [1, 2, 3]), open_block(engine, [4, 5, 6], name="s", block_length_tokens=16)
    engine.step([second])
    engine.step([first, second])
    assert seen == [16, 32 + 16]
    for _ in range(2):
        engine.step([first])
    assert seen[2:] == [32, 24], "27 and 22 masked positions"


def test_results_come_as_deltas(engine):
    (result,) = engine.step([open_block(engine, [1, 2, 3])])
    assert result.is_prefill and result.logits is None
    assert result.delta == StepDelta(
        step=0, positions=result.positions, token_ids=result.tokens, confidences=result.confidences
    )
    assert len(result.positions) == 5 and list(result.positions) == sorted(result.positions)


def test_an_empty_batch_is_nothing(engine):
    assert engine.step([]) == []


def test_bugs_are_refused(engine):
    state = open_block(engine, [1, 2, 3])
    with pytest.raises(AssertionError, match="twice"):
        engine.step([state, state])
    done = open_block(engine, [1, 2, 3], revealed={position: 1 for position in range(32)}, next_step=1)
    with pytest.raises(AssertionError, match="without masked"):
        engine.step([done])
    with pytest.raises(AssertionError, match="not in block"):
        open_block(engine, [1, 2, 3], revealed={32: 1})
    with pytest.raises(AssertionError, match="incomplete"):
        open_block(engine, [1, 2, 3], generated_token_ids=(1,))
    with pytest.raises(AssertionError, match="pages"):
        open_block(engine, [1, 2])
