"""Our side of other libraries' calls: pages, bases and orders, against what their documentation promises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels import BlockTable
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.libraries import flash_attention3, flash_infer
from distkv.kernels.triton.libraries.flash_attention3 import FlashAttention3
from distkv.kernels.triton.libraries.flash_infer import FlashInfer
from distkv.kernels.triton.libraries.pages import Pages
from tests.kernels.triton.libraries import documented
from tests.kernels.triton.libraries.cases import Sequences

CPU = torch.device("cpu")
LIBRARIES = {
    "FlashInfer": ("flashinfer", documented.FLASHINFER, FlashInfer),
    "FlashAttention-3": ("flash_attn_interface", documented.FLASH_ATTENTION_3, FlashAttention3),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    name, functions, kind = LIBRARIES[request.param]
    monkeypatch.setitem(sys.modules, name, functions)
    monkeypatch.setattr(flash_attention3, "find_spec", lambda _name: True)
    monkeypatch.setattr(flash_infer, "_WORKSPACE_BYTES", 16)
    return kind


@pytest.mark.parametrize("heads", [(4, 2, 16), (8, 1, 32), (3, 3, 8)])
@pytest.mark.parametrize(
    ("rows", "lengths"),
    [((1,), (1,)), ((1, 1, 1), (16, 33, 7)), ((3, 1, 5), (40, 17, 5)), ((16, 16), (32, 16)), ((2,), (47,))],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_partials_are_those_of_the_reference(
    library: Callable[..., Any],
    rows: tuple[int, ...],
    lengths: tuple[int, ...],
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    drawn = Sequences.drawn(rows, lengths, heads, 16, dtype, CPU)
    shape = Shape.of(drawn.q, drawn.kv.k)
    drawn.check(library(Pages.of(drawn.rows, drawn.tables), shape, drawn.scale, CPU), tolerance)


def test_blocks_with_gaps_between_them_are_pages_one_after_the_other() -> None:
    """What lies at creditors in between is no concern of a row that sees all keys here."""
    tables = (BlockTable((7, 3, 9), (0, 64, 128), 150, 16), BlockTable((5, 1), (0, 16), 16, 16))
    pages = Pages.of((1, 1), tables)
    assert pages.lengths.tolist() == [48, 16]
    assert pages.first_page.tolist() == [0, 3, 4] and pages.slots.tolist() == [7, 3, 9, 5]
    assert pages.last_tokens.tolist() == [16, 16]
    assert pages.table.tolist() == [[7, 3, 9], [5, 0, 0]]
    assert all(x.dtype == torch.int32 for x in (pages.first_page, pages.slots, pages.last_tokens, pages.table))


@pytest.mark.parametrize(("rows", "keys"), [(1, 0), (0, 5), (6, 5)])
def test_rows_without_keys_are_refused(rows: int, keys: int) -> None:
    table = BlockTable((0,), (0,), keys, 16)
    with pytest.raises(ValueError, match=f"got {rows} rows over {keys} keys"):
        Pages.of((1, rows), (BlockTable((0,), (0,), 5, 16), table))


@pytest.mark.parametrize("kind", [FlashInfer, FlashAttention3])
def test_a_library_that_is_not_installed_says_so(kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flashinfer", "flash_attn_interface", "flash_attn_3"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(flash_attention3, "find_spec", lambda _name: None)
    drawn = Sequences.drawn((1,), (5,), (4, 2, 16), 16, torch.bfloat16, CPU)
    with pytest.raises(ImportError):
        kind(Pages.of(drawn.rows, drawn.tables), Shape.of(drawn.q, drawn.kv.k), drawn.scale, CPU)
