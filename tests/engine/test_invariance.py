"""Elementwise functions and matrix products whose bits depend on the values alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from common.engine.invariance import RowPlan, map_elements


@pytest.mark.parametrize("function", [functional.silu, torch.log, torch.exp], ids=["silu", "log", "exp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_elements_result_does_not_depend_on_its_place(function, dtype, threads):
    torch.set_num_threads(threads)
    values = torch.rand(40_001, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype) + 0.1
    whole = map_elements(function, values)
    for size in (1, 7, 31, 1_000, 16_385, 40_000):
        assert torch.equal(map_elements(function, values[-size:]), whole[-size:])


def test_shape_and_values_are_kept():
    values = torch.linspace(-4.0, 4.0, 60).view(3, 4, 5)
    result = map_elements(functional.silu, values.transpose(0, 2))
    expected = (values.double() / (1.0 + torch.exp(-values.double()))).transpose(0, 2)
    assert result.shape == (5, 4, 3) and torch.allclose(result.double(), expected, atol=1e-6)


@pytest.mark.parametrize(("rows", "padded"), [(0, 8), (1, 8), (8, 8), (9, 16), (101, 104)])
def test_rows_are_padded_to_whole_multiples(rows, padded):
    assert RowPlan.for_device(torch.device("cpu")).padded(rows) == padded


def test_a_tiled_product_is_the_plain_product():
    plan = RowPlan(multiple=16, tile_rows=16)
    generator = torch.Generator().manual_seed(0)
    rows, weight, bias = (torch.randn(shape, generator=generator) for shape in ((48, 24), (40, 24), (40,)))
    expected = rows.double() @ weight.double().T + bias.double()
    assert torch.allclose(plan.linear(rows, weight, bias).double(), expected, atol=1e-5)
    assert torch.equal(plan.linear(rows[16:32], weight, bias), plan.linear(rows, weight, bias)[16:32])


def test_unpadded_rows_are_a_bug():
    with pytest.raises(AssertionError, match="not padded"):
        RowPlan(multiple=8, tile_rows=None).linear(torch.zeros(7, 2), torch.zeros(3, 2), None)
