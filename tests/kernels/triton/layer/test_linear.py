"""Linear layers of one row, and that more rows are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.layer.linear import TritonLinear

CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def draw(*shape: int, seed: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (numbers / shape[-1] ** 0.5).to(device, dtype)


@pytest.mark.parametrize("dtype", CLOSE, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize(("outputs", "inputs"), [(37, 100), (16, 1100), (9, 512)])
def test_products(device: torch.device, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    """Against float64, rounded once. Most widths are no multiples of what a program takes, and what lies beside the
    rows is NaN."""
    given = draw(3, inputs, seed=0, dtype=dtype, device=device)
    apart = torch.full((3, 2 * inputs), torch.nan, dtype=dtype, device=device)
    apart[:, :inputs] = given
    weight = draw(outputs, inputs, seed=1, dtype=dtype, device=device)
    bias = draw(outputs, seed=2, dtype=dtype, device=device)
    exact = F.linear(given.double(), weight.double())
    for rows in (0, 1, 3):
        for added in (None, bias):
            wanted = exact[:rows] if added is None else exact[:rows] + added.double()
            found = TritonLinear(weight, added)(apart[:rows, :inputs])
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), wanted, atol=CLOSE[dtype], rtol=CLOSE[dtype])


def test_weights_that_lie_apart(device: torch.device) -> None:
    weight = draw(24, 40, seed=0, dtype=torch.float32, device=device)
    x = draw(1, 24, seed=1, dtype=torch.float32, device=device)
    torch.testing.assert_close(TritonLinear(weight.T, None)(x), x @ weight)
