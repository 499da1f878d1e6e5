"""Linear layers of one row and of a few, and that more rows are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.layer.linear import TorchLinear
from distkv.kernels.triton.layer import linear
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


@pytest.mark.parametrize("tile", [linear._WIDE, linear._NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_few_rows(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tile: linear._Tile
) -> None:
    """Against float64, by a kernel of ours: torch's would answer with nothing. The last program has outputs to spare,
    and its last step inputs."""
    monkeypatch.setattr(TorchLinear, "__call__", lambda *_: None)
    monkeypatch.setattr(linear, "_tile_for", lambda _: tile)
    outputs, inputs = 2 * tile.outputs + 2, (tile.stages + 1) * tile.inputs + 34
    apart = torch.full((17, 2 * inputs), torch.nan, dtype=dtype, device=device)
    apart[:, :inputs] = draw(17, inputs, seed=0, dtype=dtype, device=device)
    given = apart[:, :inputs]
    weight = draw(outputs, inputs, seed=1, dtype=dtype, device=device)
    bias = draw(outputs, seed=2, dtype=dtype, device=device)
    exact = F.linear(given.double(), weight.double())
    for rows in (2, 16):
        for added in (None, bias):
            wanted = exact[:rows] if added is None else exact[:rows] + added.double()
            found = TritonLinear(weight, added)(given[:rows])
            torch.testing.assert_close(found.double(), wanted, atol=CLOSE[dtype], rtol=CLOSE[dtype])
    assert TritonLinear(weight, None)(given) is None


def test_nothing_is_read_for_no_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a step in which no prompt ends."""
    monkeypatch.setattr(TorchLinear, "__call__", lambda *_: None)
    monkeypatch.setattr(linear, "_multiply_few", lambda *_: None)
    found = TritonLinear(draw(2048, 64, seed=0, dtype=torch.bfloat16, device=device), None)(
        torch.empty(0, 64, dtype=torch.bfloat16, device=device)
    )
    assert found is not None and found.shape == (0, 2048) and found.dtype == torch.bfloat16


def test_which_weights_are_read_so(device: torch.device) -> None:
    """Not few outputs of many inputs, nor few at all, nor float32, nor where programs have too little memory."""

    def tile(outputs: int, inputs: int, dtype: torch.dtype = torch.bfloat16) -> object:
        return linear._tile_for(torch.empty(outputs, inputs, dtype=dtype, device=device))

    assert tile(4096, 4096) == tile(28672, 4096) == tile(8192, 28672) == linear._WIDE
    assert tile(4096, 14336) == linear._NARROW
    assert tile(2048, 8192) is tile(1024, 1024) is tile(4096, 4096, torch.float32) is None
    assert linear._NARROW.shared_bytes < 99 << 10 < linear._WIDE.shared_bytes < 160 << 10
