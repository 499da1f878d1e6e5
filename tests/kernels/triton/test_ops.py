"""The small operations against torch's; the same checks as those of the CPU's levels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distkv.kernels.ops import Ops, TorchOps

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.ops import TritonOps

EPS = 1e-5
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (1, 7, 256, 257, 1500)
ULP = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Two units in the last place, relative: what a sum in another order may make of a number that is rounded twice."""


@pytest.fixture
def ops() -> Ops:
    return TritonOps()


def random(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def check(found: Tensor, expected: Tensor) -> None:
    """Equal but for the last places of a few numbers."""
    assert found.dtype == expected.dtype and found.shape == expected.shape and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=ULP[found.dtype], atol=1e-7)
    if found.dtype != torch.float32:
        assert (found != expected).float().mean() <= 0.02


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    for width in WIDTHS:
        weight = random(width, dtype=dtype, device=device, seed=1)
        x = random(3, 2 * width, dtype=dtype, device=device) * 3
        for some in (x[:, :width], x[:, width:], x[:, ::2]):
            check(ops.rms_norm(some, weight, EPS), TorchOps().rms_norm(some, weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    for width in WIDTHS:
        weight = random(width, dtype=dtype, device=device, seed=2)
        x = random(3, width, dtype=dtype, device=device)
        y = random(3, width + 5, dtype=dtype, device=device, seed=1)[:, :width]
        total, normal = ops.add_rms_norm(x, y, weight, EPS)
        assert torch.equal(total, x + y)
        check(normal, TorchOps().rms_norm(x + y, weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_mul(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    for width in WIDTHS:
        gate_up = random(3, 2 * width + 3, dtype=dtype, device=device)[:, : 2 * width] * 4
        check(ops.silu_mul(gate_up), TorchOps().silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_at_its_ends(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    gate = torch.tensor([0.0, -0.0, 1e-4, 30.0, -30.0, 1e4, -1e4, torch.inf, torch.nan], dtype=dtype, device=device)
    found = ops.silu_mul(torch.cat((gate, torch.ones_like(gate)))[None])[0]
    expected = (gate.double() * gate.double().sigmoid()).to(dtype)
    torch.testing.assert_close(found, expected, rtol=ULP[dtype], atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_no_number_stays_in_its_row(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    x, weight = random(4, 40, dtype=dtype, device=device), random(40, dtype=dtype, device=device, seed=1)
    x[1, 3] = torch.nan
    normal, product = ops.rms_norm(x, weight, EPS), ops.silu_mul(x)
    assert normal[1].isnan().all() and product[1].isnan().sum() == 1
    assert not normal[[0, 2, 3]].isnan().any() and not product[[0, 2, 3]].isnan().any()


def test_no_rows(ops: Ops, device: torch.device) -> None:
    x, weight = torch.zeros(0, 8, device=device), torch.ones(8, device=device)
    total, normal = ops.add_rms_norm(x, x, weight, EPS)
    assert ops.rms_norm(x, weight, EPS).shape == total.shape == normal.shape == (0, 8)
    assert ops.silu_mul(x).shape == (0, 4)
