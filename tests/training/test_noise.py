"""Noise: what is masked, what counts, and that the weights make every position count the same on average."""

from __future__ import annotations

import numpy as np
import pytest

from common.training.noise import Noise, draw_noise

_BATCH = 64
_CANVAS_TOKENS = 80
_PROMPT_TOKENS = 12
_ANSWER_TOKENS = 40


def _draw(seed: int) -> Noise:
    return draw_noise(
        np.random.default_rng(seed),
        prompt_tokens=np.full(_BATCH, _PROMPT_TOKENS),
        answer_tokens=np.full(_BATCH, _ANSWER_TOKENS),
        canvas_tokens=_CANVAS_TOKENS,
    )


def test_the_prompt_is_never_masked_and_only_masks_count() -> None:
    for seed in range(50):
        noise = _draw(seed)
        assert not noise.masked[:, :_PROMPT_TOKENS].any()
        assert not (noise.weight[~noise.masked] != 0).any()
        assert (noise.weight.sum(1) > 0).mean() > 0.8


def test_half_of_the_canvases_look_like_block_by_block_writing() -> None:
    """There the canvas' end is masked and does not count: it is a later block."""
    by_block = [
        bool(noise.masked[row, -1]) and noise.weight[row, -1] == 0
        for noise in map(_draw, range(20))
        for row in range(_BATCH)
    ]
    assert sum(by_block) / len(by_block) == pytest.approx(0.5, abs=0.06)


def test_a_counted_block_has_one_of_the_lengths_that_servers_use() -> None:
    for noise in map(_draw, range(20)):
        for masked, weight in zip(noise.masked, noise.weight, strict=True):
            if masked[-1] and weight[-1] == 0:
                counted = np.flatnonzero(weight)
                first_later = np.flatnonzero(~masked).max() + 1 if len(counted) == 0 else counted.max() + 1
                assert masked[first_later + 31 :].all()
                assert len(counted) <= 32


def test_a_whole_canvas_counts_each_position_once_on_average() -> None:
    total = np.zeros(_CANVAS_TOKENS)
    draws = 1500
    for seed in range(draws):
        total += _draw(seed).weight.mean(0)
    mean = total / draws
    answer = mean[_PROMPT_TOKENS : _PROMPT_TOKENS + _ANSWER_TOKENS - 1]
    padding = mean[_PROMPT_TOKENS + _ANSWER_TOKENS + 8 :]
    # Half of the canvases count everywhere, the others in one block of 8, 16 or 32 of about 40.
    assert answer.min() > 0.5
    assert answer.max() < 1.1
    assert padding.max() < 0.2
    assert padding.min() == pytest.approx(0.25 * 0.5, rel=0.35)


def test_the_same_generator_gives_the_same_noise() -> None:
    first, again = _draw(5), _draw(5)
    assert (first.masked == again.masked).all()
    assert (first.weight == again.weight).all()


def test_some_blocks_are_written_up_to_a_front_whose_next_tokens_count() -> None:
    """Their weights are all 3 (1/t is 3 for one share only), and stand within four positions."""
    fronts = 0
    for noise in map(_draw, range(20)):
        for masked, weight in zip(noise.masked, noise.weight, strict=True):
            counted = np.flatnonzero(weight)
            if len(counted) and (weight[counted] == 3.0).all():
                fronts += 1
                assert counted.max() - counted.min() < 4
                assert masked[counted.max() + 1 :].mean() > 0.5
    assert fronts / (20 * _BATCH) == pytest.approx(0.3, abs=0.05)
