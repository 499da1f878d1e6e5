"""Small operations of every backend that runs here, against torch's and float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distkv.kernels import Backend
from distkv.kernels.layer.ops import TorchOps
from tests.kernels.cpu.layer.test_linear import DTYPES, random
from tests.kernels.layers import device_of

EPS = 1e-5
ULP = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Two units in the last place, relative: what a sum in another order may make of a number that is rounded twice."""


def widths_of(backend: Backend) -> tuple[int, ...]:
    """Around the vectors of CPUs, or the tiles of Triton."""
    return (1, 7, 256, 257, 1500) if backend.name == "triton" else (1, 7, 64, 255, 256, 257, 600)


def rows_of(backend: Backend) -> tuple[int, ...]:
    """For Triton's interpreter few: its programs know nothing of other rows."""
    return (3,) if backend.name == "triton" else (1, 3, 90)


def check(found: Tensor, expected: Tensor) -> None:
    """Equal but for the last places of a few numbers."""
    assert found.dtype == expected.dtype and found.shape == expected.shape and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=ULP[found.dtype], atol=1e-7)
    if found.dtype != torch.float32:
        assert (found != expected).float().mean() <= 0.02


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(backend: Backend, dtype: torch.dtype) -> None:
    device = device_of(backend)
    for width in widths_of(backend):
        weight = random(width, dtype=dtype, seed=1).to(device)
        for rows in rows_of(backend):
            x = random(rows, 2 * width, dtype=dtype).to(device) * 3
            for some in (x[:, :width], x[:, width:], x[:, ::2]):
                check(backend.ops.rms_norm(some, weight, EPS), TorchOps().rms_norm(some, weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm(backend: Backend, dtype: torch.dtype) -> None:
    device = device_of(backend)
    for width in widths_of(backend):
        weight = random(width, dtype=dtype, seed=2).to(device)
        for rows in rows_of(backend):
            x = random(rows, width, dtype=dtype).to(device)
            y = random(rows, width + 5, dtype=dtype, seed=1).to(device)[:, :width]
            total, normal = backend.ops.add_rms_norm(x, y, weight, EPS)
            assert torch.equal(total, x + y)
            check(normal, TorchOps().rms_norm(x + y, weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_mul(backend: Backend, dtype: torch.dtype) -> None:
    for width in widths_of(backend):
        for rows in rows_of(backend):
            gate_up = random(rows, 2 * width + 3, dtype=dtype).to(device_of(backend))[:, : 2 * width] * 4
            check(backend.ops.silu_mul(gate_up), TorchOps().silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_at_its_ends(backend: Backend, dtype: torch.dtype) -> None:
    numbers = [0.0, -0.0, 1e-4, 30.0, -30.0, 1e4, -1e4, torch.inf, torch.nan]
    gate = torch.tensor(numbers, dtype=dtype, device=device_of(backend))
    found = backend.ops.silu_mul(torch.cat((gate, torch.ones_like(gate)))[None])[0]
    expected = (gate.double() * gate.double().sigmoid()).to(dtype)
    torch.testing.assert_close(found, expected, rtol=ULP[dtype], atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_no_number_stays_in_its_row(backend: Backend, dtype: torch.dtype) -> None:
    device, ops = device_of(backend), backend.ops
    x, weight = random(4, 40, dtype=dtype).to(device), random(40, dtype=dtype, seed=1).to(device)
    x[1, 3] = torch.nan
    normal, product = ops.rms_norm(x, weight, EPS), ops.silu_mul(x)
    assert normal[1].isnan().all() and product[1].isnan().sum() == 1
    assert not normal[[0, 2, 3]].isnan().any() and not product[[0, 2, 3]].isnan().any()


def test_no_rows(backend: Backend) -> None:
    device, ops = device_of(backend), backend.ops
    x, weight = torch.zeros(0, 8, device=device), torch.ones(8, device=device)
    total, normal = ops.add_rms_norm(x, x, weight, EPS)
    assert ops.rms_norm(x, weight, EPS).shape == total.shape == normal.shape == (0, 8)
    assert ops.silu_mul(x).shape == (0, 4)
