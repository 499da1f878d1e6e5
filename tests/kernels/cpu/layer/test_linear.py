"""Linear layers of every level that runs here, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distkv.kernels.cpu.dispatch import TORCH, available, backend_of, choose
from distkv.kernels.layer.linear import TorchLinear
from distkv.types import CpuKernels

LEVELS = available()
NATIVE = [level for level in LEVELS if level != TORCH]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 5e-3, torch.float16: 6e-4}
"""Of the largest number of the result: rounding it is at most 2⁻⁹ of it in bfloat16, 2⁻¹² in float16."""
DTYPES = list(TOLERANCE)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 24, 25, 32, 33, 40, 64, 70)
SHAPES = ((1, 1), (33, 7), (64, 64), (95, 65), (200, 531))
"""out, in"""


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    exact = x.double() @ weight.double().T
    if bias is not None:
        exact = exact + bias.double()
    assert y.dtype == x.dtype and y.shape == exact.shape
    assert (y.double() - exact).abs().max() <= TOLERANCE[x.dtype] * exact.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_odd_sizes_of_all_kinds(level: CpuKernels, dtype: torch.dtype) -> None:
    for out, width in SHAPES:
        weight, bias = random(out, width, dtype=dtype), random(out, dtype=dtype, seed=1)
        for some_bias in (None, bias):
            linear = backend_of(choose(level)).linear(weight, some_bias)
            for rows in ROWS:
                x = random(rows, width, dtype=dtype, seed=rows)
                check(linear(x), x, weight, some_bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_more_rows_than_a_block_and_more_outputs_than_a_group(level: CpuKernels, dtype: torch.dtype) -> None:
    weight, x = random(290, 140, dtype=dtype), random(300, 140, dtype=dtype, seed=1)
    check(backend_of(choose(level)).linear(weight, None)(x), x, weight, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_strided_tensors_among_nan(level: CpuKernels, dtype: torch.dtype) -> None:
    """Rows and weights are parts of larger tensors whose rest must not be read into anything."""
    weights, xs = torch.full((40, 50), torch.nan, dtype=dtype), torch.full((30, 60), torch.nan, dtype=dtype)
    weights[:35, :33], xs[:, 9:42] = random(35, 33, dtype=dtype), random(30, 33, dtype=dtype, seed=1)
    weight, x = weights[:35, :33], xs[:, 9:42]
    linear = backend_of(choose(level)).linear(weight, None)
    for rows in (x[:1], x[:5], x, x.T.contiguous().T):
        check(linear(rows), rows, weight, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", NATIVE)
def test_what_is_no_number_stays_in_its_row(level: CpuKernels, dtype: torch.dtype) -> None:
    weight, x = random(40, 21, dtype=dtype), random(30, 21, dtype=dtype, seed=1)
    x[3, 4], x[7, 20], x[8, 0] = torch.nan, torch.inf, torch.finfo(dtype).max
    y = backend_of(choose(level)).linear(weight, None)(x)
    assert y[3].isnan().all() and y[7].isinf().all()
    if dtype == torch.float16:
        assert y[8].isinf().any()  # what is too large rounds to infinity, as in torch
    others = [row for row in range(30) if row not in (3, 7, 8)]
    check(y[others], x[others], weight, None)


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_is_the_same_whatever_stands_beside_it(level: CpuKernels) -> None:
    """So that a batch gives each request what it would get alone, up to the rounding of sums."""
    weight, x = random(70, 600, dtype=torch.float32), random(40, 600, dtype=torch.float32, seed=1)
    linear = backend_of(choose(level)).linear(weight, None)
    together = linear(x)
    alone = torch.cat([linear(row[None]) for row in x])
    assert (alone - together).abs().max() <= TOLERANCE[torch.float32] * together.abs().max()


@pytest.mark.parametrize("level", NATIVE)
def test_a_wrong_input_is_refused(level: CpuKernels) -> None:
    linear = backend_of(choose(level)).linear(random(8, 6, dtype=torch.float32), None)
    with pytest.raises(ValueError, match=r"expected torch\.float32 \[N, 6\], got torch\.float32 \[2, 5\]"):
        linear(torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"got torch\.bfloat16"):
        linear(torch.zeros(2, 6, dtype=torch.bfloat16))
    assert linear(torch.zeros(0, 6)).shape == (0, 8)


def test_which_library_computes() -> None:
    for level in LEVELS:
        for dtype in DTYPES:
            kind = backend_of(choose(level)).linear_name(dtype)
            assert kind == ("torch" if level == TORCH else "native")
    weight = random(3, 5, dtype=torch.float32)
    assert isinstance(backend_of(choose(TORCH)).linear(weight, None), TorchLinear)
