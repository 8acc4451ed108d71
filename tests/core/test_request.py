"""The lifecycle table, attempts, and what a request remembers of its tokens."""

from __future__ import annotations

import itertools

import pytest

from common.core.request import (
    LAWFUL_MOVES,
    STORY_MOVES,
    BlockState,
    InvalidTransition,
    Request,
    RequestState,
)
from common.core.work import BlockCompletion, FinishReason, StepDelta
from tests.core.samples import delta, request_spec, token_at

# Design, section 4, written out once more.
BLOCK_LIFE = {
    ("waiting_prefill", "prefilling"),
    ("waiting_prefill", "decoding"),
    ("prefilling", "waiting_prefill"),
    ("prefilling", "kv_ready"),
    ("prefilling", "committed"),
    ("kv_ready", "waiting_prefill"),
    ("kv_ready", "transferring"),
    ("kv_ready", "decoding"),
    ("transferring", "waiting_prefill"),
    ("transferring", "kv_ready"),
    ("transferring", "decoding"),
    ("decoding", "waiting_prefill"),
    ("decoding", "kv_ready"),
    ("decoding", "committed"),
    ("committed", "waiting_prefill"),
}
REQUEST_LIFE = {
    ("queued", "running"),
    ("queued", "failed"),
    ("queued", "cancelled"),
    ("running", "finished"),
    ("running", "failed"),
    ("running", "cancelled"),
}


def fresh(*, block: int = 4, max_tokens: int = 8) -> Request:
    return Request.submitted(request_spec("r", block=block, max_tokens=max_tokens), 1.0, fits_known=True)


@pytest.mark.parametrize(("origin", "target"), list(itertools.product(BlockState, BlockState)))
def test_every_pair_of_block_states_is_allowed_or_refused_as_designed(origin: BlockState, target: BlockState) -> None:
    request = fresh()
    request.block_state = origin
    if (origin.value, target.value) in BLOCK_LIFE:
        request.move(target, 2.0)
        assert request.block_state is target and request.story == ((2.0, origin, target),)
        return
    with pytest.raises(InvalidTransition) as caught:
        request.move(target, 2.0)
    assert (caught.value.request_id, caught.value.origin, caught.value.target) == ("r", origin, target)
    assert request.block_state is origin and request.story == ()


@pytest.mark.parametrize(("origin", "target"), list(itertools.product(RequestState, RequestState)))
def test_every_pair_of_request_states_is_allowed_or_refused_as_designed(
    origin: RequestState, target: RequestState
) -> None:
    request = fresh()
    request.state = origin
    if (origin.value, target.value) in REQUEST_LIFE:
        request.move_request(target, 2.0)
        assert request.state is target
    else:
        with pytest.raises(InvalidTransition):
            request.move_request(target, 2.0)


def test_the_table_has_a_line_for_every_state() -> None:
    assert set(LAWFUL_MOVES) == {*BlockState, *RequestState}


def test_the_story_is_bounded_and_told_by_the_error() -> None:
    request = fresh()
    for turn in range(STORY_MOVES):
        request.move(BlockState.PREFILLING, float(turn))
        request.move(BlockState.WAITING_PREFILL, float(turn))
    assert len(request.story) == STORY_MOVES and request.story[-1][0] == STORY_MOVES - 1
    with pytest.raises(InvalidTransition, match=r"r: waiting_prefill -> committed.*prefilling -> waiting_prefill"):
        request.move(BlockState.COMMITTED, 99.0)


def test_a_repeated_attempt_shows_only_what_is_new_and_counts_what_differs() -> None:
    request = fresh()
    shown, differing = request.reveal(delta("r", 0, [1, 2]))
    assert shown == delta("r", 0, [1, 2]) and differing == 0
    request.start_attempt()
    repeat = StepDelta(step=0, positions=(1, 2, 3), token_ids=(token_at("r", 1), 7, 8), confidences=(0.5, 0.6, 0.7))
    shown, differing = request.reveal(repeat)
    assert shown == StepDelta(step=0, positions=(3,), token_ids=(8,), confidences=(0.7,)) and differing == 1
    assert request.shown == {1: token_at("r", 1), 2: token_at("r", 2), 3: 8}


def test_a_new_attempt_must_reveal_its_whole_block_itself() -> None:
    request = fresh(block=4, max_tokens=8)
    done = BlockCompletion(prefill_forwards=1, decode_forwards=1, finish=None)
    request.reveal(delta("r", 0, [0, 1, 2, 3]))
    assert request.is_complete(done)
    request.start_attempt()
    request.reveal(delta("r", 0, [0, 1, 2]))
    assert not request.is_complete(done)


@pytest.mark.parametrize(
    ("block", "finish", "complete"),
    [
        (0, None, True),
        (0, FinishReason.LENGTH, False),
        (0, FinishReason.STOP, True),
        (1, None, False),
        (1, FinishReason.LENGTH, True),
        (1, FinishReason.STOP, True),
    ],
)
def test_only_the_last_block_ends_by_length(block: int, finish: FinishReason | None, complete: bool) -> None:
    request = fresh(block=4, max_tokens=6)
    request.reveal(delta("r", 0, [0, 1, 2, 3]))
    if block:
        request.start_next_block(2.0)
        request.reveal(delta("r", 0, [4, 5]))  # 6 and 7 lie beyond max_tokens
    assert request.is_complete(BlockCompletion(prefill_forwards=1, decode_forwards=0, finish=finish)) is complete


def test_the_next_block_works_on_the_tokens_that_were_shown() -> None:
    request = fresh(block=2, max_tokens=4)
    request.reveal(delta("r", 0, [1]))
    request.start_attempt()
    request.reveal(delta("r", 0, [0, 1]))
    request.start_next_block(2.0)
    work = request.work()
    assert (work.attempt.block, work.attempt.attempt) == (1, 0)
    assert work.generated_token_ids == (token_at("r", 0), token_at("r", 1))


@pytest.mark.parametrize(
    "bad",
    [
        StepDelta(step=0, positions=(4,), token_ids=(1,), confidences=(0.1,)),
        StepDelta(step=0, positions=(-1,), token_ids=(1,), confidences=(0.1,)),
        StepDelta(step=0, positions=(0, 1), token_ids=(1,), confidences=(0.1, 0.2)),
        StepDelta(step=0, positions=(0,), token_ids=(1,), confidences=()),
    ],
)
def test_deltas_outside_the_block_or_out_of_step_are_malformed(bad: StepDelta) -> None:
    request = fresh(block=4)
    assert not request.is_well_formed(bad)
    assert request.is_well_formed(delta("r", 0, [0, 3]))
