"""BlockProgress: when a block is done, and when the request is."""

from __future__ import annotations

import random

import pytest

from common.core.block import BlockProgress
from common.core.work import FinishReason

EOS = 9


def progress(
    *, start: int = 8, length: int = 8, cut: int = 100, eos: int | None = EOS, ignore_eos: bool = False
) -> BlockProgress:
    return BlockProgress(
        block_start_position=start,
        block_length_tokens=length,
        cut_position=cut,
        eos_token_id=eos,
        ignore_eos=ignore_eos,
    )


def test_a_block_in_the_middle_completes_when_every_position_is_revealed():
    block = progress()
    block.reveal([9, 11, 15], [1, 2, 3])
    assert (block.complete, block.masked_count, block.output_token_ids) == (False, 5, ())
    block.reveal([8, 10], [4, 5])
    assert list(block.output_token_ids) == [4, 1, 5, 2]
    block.reveal([12, 13, 14], [6, 7, 8])
    assert (block.complete, block.finish, block.masked_count) == (True, None, 0)
    assert list(block.output_token_ids) == [4, 1, 5, 2, 6, 7, 8, 3]


def test_positions_past_the_cut_do_not_hold_up_the_last_block():
    block = progress(cut=11)
    block.reveal([8, 9], [1, 2])
    assert not block.complete and block.masked_count == 1
    block.reveal([13, 10], [5, 3])
    assert block.complete and block.finish is FinishReason.LENGTH
    assert block.output_token_ids == (1, 2, 3)


def test_the_block_that_ends_at_the_cut_is_the_last():
    block = progress(start=0, length=2, cut=2)
    block.reveal([0, 1], [1, 2])
    assert block.finish is FinishReason.LENGTH


def test_eos_ends_the_request_once_everything_before_it_is_revealed():
    block = progress()
    block.reveal([8, 10], [1, EOS])
    assert not block.complete and block.finish is None
    block.reveal([9], [2])
    assert block.complete and block.finish is FinishReason.STOP
    assert block.output_token_ids == (1, 2, EOS)
    assert block.masked_count == 5


def test_the_first_eos_counts_even_when_a_later_one_came_sooner():
    block = progress(start=0)
    block.reveal([3, 1], [EOS, EOS])
    block.reveal([0], [1])
    assert block.output_token_ids == (1, EOS) and block.finish is FinishReason.STOP


def test_eos_past_the_cut_does_not_stop():
    block = progress(start=0, cut=2)
    block.reveal([0, 1, 2], [1, 2, EOS])
    assert block.finish is FinishReason.LENGTH and block.output_token_ids == (1, 2)


@pytest.mark.parametrize("settings", [{"ignore_eos": True}, {"eos": None}])
def test_eos_is_a_token_like_any_other_when_it_is_ignored_or_unknown(settings):
    block = progress(start=0, length=3, cut=3, **settings)
    block.reveal([0], [EOS])
    assert not block.complete
    block.reveal([1, 2], [EOS, 5])
    assert block.finish is FinishReason.LENGTH and block.output_token_ids == (EOS, EOS, 5)


@pytest.mark.parametrize("positions", [[7], [16]])
def test_positions_of_another_block_are_a_bug(positions):
    with pytest.raises(AssertionError, match="not in block"):
        progress().reveal(positions, [1])


def test_a_revealed_token_never_changes():
    block = progress()
    block.reveal([8], [1])
    with pytest.raises(AssertionError, match="revealed before"):
        block.reveal([8], [1])


def test_any_order_of_reveals_gives_the_full_run_cut_at_its_first_eos():
    for seed in range(200):
        rng = random.Random(seed)
        length, cut = rng.randint(1, 12), rng.randint(1, 14)
        tokens = [rng.choice([1, 2, 3, EOS]) for _ in range(length)]
        expected = tokens[: min(length, cut)]
        if EOS in expected:
            expected = expected[: expected.index(EOS) + 1]
        block = progress(start=0, length=length, cut=cut)
        for position in rng.sample(range(length), length):
            if block.complete:
                break
            block.reveal([position], [tokens[position]])
        assert block.complete and list(block.output_token_ids) == expected
        stopped = bool(expected) and expected[-1] == EOS
        last = FinishReason.LENGTH if cut <= length else None
        assert block.finish is (FinishReason.STOP if stopped else last)
