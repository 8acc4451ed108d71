"""Rotary embedding and RMSNorm in reduced precision."""

from __future__ import annotations

import torch

from common.engine.models.layers import RotaryTable, rms_norm, rotate


def turned(*, full_precision: bool, dtype: torch.dtype) -> torch.Tensor:
    table = RotaryTable(
        head_dim=16, theta=1e4, max_tokens=400, full_precision=full_precision, device=torch.device("cpu")
    )
    heads = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).to(dtype)
    return rotate(heads, *table.rows(torch.tensor([0, 3, 77, 399]), dtype))


def test_full_precision_rotates_in_float32_and_rounds_once():
    exact = turned(full_precision=True, dtype=torch.float32)
    assert torch.equal(turned(full_precision=True, dtype=torch.bfloat16), exact.to(torch.bfloat16))
    assert not torch.equal(turned(full_precision=False, dtype=torch.bfloat16), exact.to(torch.bfloat16))


def test_position_zero_is_not_turned_and_lengths_are_kept():
    heads = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).float()
    result = turned(full_precision=True, dtype=torch.float32)
    assert torch.equal(result[0], heads[0])
    assert torch.allclose(result.norm(dim=-1), heads.norm(dim=-1), rtol=1e-5)


def test_rms_norm_is_computed_in_float32():
    rows = torch.full((8, 64), 300.0, dtype=torch.float16)
    # the square of 300 overflows float16
    assert torch.equal(rms_norm(rows, torch.ones(64, dtype=torch.float16), 1e-5), torch.ones_like(rows))
