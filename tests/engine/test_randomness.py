"""Counter-based draws: published values, the tensor form equal to the integer form, good spread."""

from __future__ import annotations

import torch

from common.engine.randomness import as_int64, draw, gumbel, mix64, uniform

GAMMA = 0x9E3779B97F4A7C15


def test_splitmix64_reference_outputs():
    """First outputs of SplitMix64 seeded with 1234567, as published with the generator's reference code."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix64((1234567 + (index + 1) * GAMMA) % 2**64) for index in range(4)] == expected


def test_tensor_draws_equal_integer_draws():
    keys = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, draw(5, 6)]
    result = uniform(torch.tensor([as_int64(key) for key in keys]), 300)
    for row, key in zip(result.tolist(), keys, strict=True):
        expected = [((mix64((key + (index + 1) * GAMMA) % 2**64) >> 12) + 0.5) / 2**52 for index in range(300)]
        assert row == expected


def test_draws_depend_on_every_counter_and_their_order():
    paths = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert len({draw(seed, *path) for seed in (0, 1, 2**64 - 1) for path in paths}) == 3 * len(paths)


def test_uniforms_are_uniform_and_inside_the_open_interval():
    values = uniform(torch.tensor([as_int64(draw(0, row)) for row in range(50)]), 2000)
    assert values.min() > 0.0 and values.max() < 1.0
    # 100 000 draws: mean 1/2 and variance 1/12 within five standard deviations
    assert abs(values.mean() - 0.5) < 0.0046 and abs(values.var() - 1 / 12) < 0.0012


def test_gumbel_noise_has_its_mean_and_is_finite():
    noise = gumbel(torch.arange(50), 2000)
    assert torch.isfinite(noise).all()
    # mean: Euler's constant; five standard deviations of 100 000 draws are 0.0203
    assert abs(noise.mean() - 0.5772) < 0.0203
