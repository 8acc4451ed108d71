"""The roofline against arithmetic done by hand, and calibration against times made from known prices."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.sim.calibration import MeasuredStep, fit, read_steps
from common.sim.cost_model import DecodeItem, LinearCost, Machine, ModelShape, PrefillItem, RooflineCost
from common.sim.presets import PRESETS

TINY = ModelShape.of(layers=2, width=8, heads=2, kv_heads=1, head_dim=4, mlp=16, vocab=10, lookback=0)
MACHINE = Machine(sustained_flops=1e6, attention_flops=1e5, memory_bytes_per_s=1e6, launch_s=0.5, item_s=0.25)


def test_shape_counts_parameters():
    # Per layer: q and o 8x8 each, k and v 8x4 each, three MLP matrices 8x16.
    assert TINY.layer_parameters == 2 * (64 + 64 + 32 + 32 + 3 * 128)
    assert TINY.head_parameters == 80
    assert TINY.kv_bytes_per_token == 2 * 2 * 4 * 2


@pytest.mark.parametrize(
    ("name", "parameters", "kv_kib"), [("h100-llada-8b", 8.02e9, 512), ("h100-dream-7b", 7.62e9, 56)]
)
def test_presets_match_the_published_sizes(name: str, parameters: float, kv_kib: int):
    shape = PRESETS[name].shape
    # The published count has the embedding table, of the head's size, on top.
    assert shape.layer_parameters + 2 * shape.head_parameters == pytest.approx(parameters, rel=0.01)
    assert shape.kv_bytes_per_token == kv_kib * 1024


def test_a_forward_costs_what_the_roofline_says():
    cost = RooflineCost(shape=TINY, machine=MACHINE)
    decode_flops = 2 * (4 * 1152 + 4 * 80)
    prefill_flops = 2 * (20 * 1152 + 4 * 80)
    attention_flops = 4 * 2 * 8 * (4 * 100 + 20 * 20)
    expected = 0.5 + 2 * 0.25 + (decode_flops + prefill_flops) / 1e6 + attention_flops / 1e5
    assert cost.forward_s([DecodeItem(4, 100)], [PrefillItem(20, 4)]) == pytest.approx(expected)


def test_a_small_forward_is_bound_by_memory():
    machine = Machine(sustained_flops=1e15, attention_flops=1e15, memory_bytes_per_s=1e6, launch_s=0.0, item_s=0.0)
    cost = RooflineCost(shape=TINY, machine=machine)
    weights, kv = (1152 + 80) * 2, 100 * 32
    assert cost.forward_s([DecodeItem(4, 100)], []) == pytest.approx((weights + kv) / 1e6)


def test_a_shifted_model_computes_one_row_more_per_decode():
    flops_only = Machine(sustained_flops=1e6, attention_flops=1e15, memory_bytes_per_s=1e15, launch_s=0.0, item_s=0.0)
    shifted = ModelShape.of(layers=2, width=8, heads=2, kv_heads=1, head_dim=4, mlp=16, vocab=10, lookback=1)
    rows = [RooflineCost(shape=s, machine=flops_only).forward_s([DecodeItem(4, 9)], []) for s in (TINY, shifted)]
    assert rows[1] - rows[0] == pytest.approx(2 * 1152 / 1e6, rel=1e-3)


def measured(cost: LinearCost, noise: float = 0.0) -> list[MeasuredStep]:
    rng = random.Random(4)
    sizes = [(rng.randrange(0, 4000, 50), 32 * rng.randrange(40)) for _ in range(60)]
    return [
        MeasuredStep(
            prefill_tokens=prefill,
            decode_tokens=decode,
            seconds=(cost.launch_s + cost.prefill_token_s * prefill + cost.decode_token_s * decode)
            * (1 + noise * rng.uniform(-1, 1)),
        )
        for prefill, decode in sizes
    ]


def test_calibration_finds_the_prices():
    true = LinearCost(launch_s=0.004, prefill_token_s=4e-5, decode_token_s=6e-5)
    exact = fit(measured(true), option="--calibrate")
    assert exact.relative_error < 1e-9
    for name in ("launch_s", "prefill_token_s", "decode_token_s"):
        assert getattr(exact.cost, name) == pytest.approx(getattr(true, name), rel=1e-6)
    noisy = fit(measured(true, noise=0.05), option="--calibrate")
    assert noisy.cost.prefill_token_s == pytest.approx(4e-5, rel=0.05)
    assert 0.005 < noisy.relative_error < 0.05


def test_calibration_never_finds_a_negative_price():
    # Decodes that seem to save time: the best fit without negative prices charges nothing for them.
    steps = [
        MeasuredStep(prefill_tokens=p, decode_tokens=d, seconds=0.01 + p * 1e-5 - d * 1e-6)
        for p in (100, 500, 900)
        for d in (0, 64, 128)
    ]
    cost = fit(steps, option="--calibrate").cost
    assert cost.decode_token_s == 0.0
    assert cost.prefill_token_s == pytest.approx(1e-5)


def test_calibration_of_one_kind_of_step_prices_that_kind():
    steps = [MeasuredStep(prefill_tokens=0, decode_tokens=n, seconds=0.002 + n * 1e-4) for n in (32, 64, 320)]
    cost = fit(steps, option="--calibrate").cost
    assert cost.launch_s == pytest.approx(0.002)
    assert cost.decode_token_s == pytest.approx(1e-4)


@pytest.mark.parametrize("wrapped", [True, False])
def test_steps_are_read_from_json(tmp_path: Path, wrapped: bool):
    entries = [{"prefill_tokens": 10, "decode_tokens": 32, "seconds": 0.5}]
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"steps": entries} if wrapped else entries), encoding="utf-8")
    assert read_steps(path, option="") == [MeasuredStep(prefill_tokens=10, decode_tokens=32, seconds=0.5)]


@pytest.mark.parametrize(
    "text",
    ["{", '{"a": 1}', "3", '[{"prefill_tokens": 1}]', '[{"prefill_tokens":1,"decode_tokens":2,"seconds":0}]', "[7]"],
)
def test_bad_measurements_name_the_option_and_the_file(tmp_path: Path, text: str):
    path = tmp_path / "steps.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--calibrate: .*steps\.json"):
        read_steps(path, option="--calibrate")


def test_no_measurements_fit_nothing():
    with pytest.raises(ConfigError, match=r"--calibrate: .*fit no model"):
        fit([], option="--calibrate")
