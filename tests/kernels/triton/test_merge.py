"""What ScaleReduce's launches add to the algebra, which test_merge checks for all backends."""

from __future__ import annotations

import pytest
import torch

from distkv.kernels import merge

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.merge import merge_partials


def partials_of(
    count: int, rows: int, heads: int, dim: int, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(count)
    return [
        (
            torch.randn(rows, heads, dim, generator=generator).to(device),
            torch.randn(rows, heads, generator=generator).to(device),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 9, 17, 33, 40])
@pytest.mark.parametrize(("rows", "heads", "dim"), [(1, 3, 10), (13, 5, 32)])
def test_any_number_of_partials(device: torch.device, count: int, rows: int, heads: int, dim: int) -> None:
    partials = partials_of(count, rows, heads, dim, device)
    expected = merge([(out.double(), lse.double()) for out, lse in partials])
    for got, wanted in zip(merge_partials(partials), expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=2e-6)


def test_rows_of_larger_partials_and_transposed_ones(device: torch.device) -> None:
    (out, lse), (other, other_lse) = partials_of(2, 7, 3, 8, device)
    turned = other.transpose(1, 2).contiguous().transpose(1, 2)
    got = merge_partials([(out[3:5], lse[3:5]), (turned[3:5], other_lse[3:5])])
    wanted = merge([(out[3:5], lse[3:5]), (other[3:5], other_lse[3:5])])
    for one, two in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=2e-6, rtol=2e-6)


def test_one_partial_is_itself_and_no_rows_are_none(device: torch.device) -> None:
    one = partials_of(1, 2, 2, 8, device)
    assert merge_partials(one) is one[0]
    none = [(torch.empty(0, 2, 8, device=device), torch.empty(0, 2, device=device))] * 3
    out, lse = merge_partials(none)
    assert out.shape == (0, 2, 8)
    assert lse.shape == (0, 2)


def test_empty_partials_weigh_nothing(device: torch.device) -> None:
    (out, lse), (other, none) = partials_of(2, 2, 2, 8, device)
    none.fill_(-torch.inf)
    other.zero_()
    lse[0] = -torch.inf
    out[0] = 0.0
    merged, total = merge_partials([(other, none), (out, lse), (other, none)])
    assert torch.equal(merged, out)
    torch.testing.assert_close(total, lse)
