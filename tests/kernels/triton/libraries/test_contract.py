"""Our side of other libraries' calls: pages, bases and orders, against what their documentation promises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels import BlockTable
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.libraries import flash_attention3
from distkv.kernels.triton.libraries.flash_attention3 import FlashAttention3
from distkv.kernels.triton.libraries.flash_infer import FlashInfer
from distkv.kernels.triton.libraries.pages import Pages, mask_of
from tests.kernels.triton.libraries import documented
from tests.kernels.triton.libraries.cases import Sequences

CPU = torch.device("cpu")


@pytest.fixture(params=[FlashInfer, FlashAttention3])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    documented.install(monkeypatch)
    kind: Callable[..., Any] = request.param
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


@pytest.mark.parametrize(
    ("rows", "keys", "causal"), [(1, 0, True), (0, 5, True), (6, 5, True), (1, 0, False), (0, 5, False)]
)
def test_rows_without_keys_are_refused(rows: int, keys: int, causal: bool) -> None:
    table = BlockTable((0,), (0,), keys, 16)
    with pytest.raises(ValueError, match=f"got {rows} rows over {keys} keys"):
        Pages.of((1, rows), (BlockTable((0,), (0,), 5, 16), table), causal=causal)


GAPS = BlockTable((7, 3, 9), (16, 64, 128), 140, 16)
"""Its last key has position 139, the one before the last block 79."""


@pytest.mark.parametrize(
    ("table", "positions", "causal"),
    [
        (GAPS, [139], True),
        (GAPS, [5000], True),
        (GAPS, [138], None),  # one key is behind it
        (GAPS, [137, 138, 139], True),
        (GAPS, [*range(78, 80), *range(128, 140)], True),  # the last rows, where the request has none in between
        (GAPS, [*range(126, 140)], None),
        (GAPS, [138, 137, 139], None),
        (GAPS, [137, 138], None),
        (GAPS, [139, 140, 141], False),
        (GAPS, [*range(200, 300)], False),  # more rows than keys
        (GAPS, [300, 200], False),
        (GAPS, [138, 139, 140], None),
        (BlockTable((1, 2), (0, 16), 16, 16), [15], True),  # the last block has no key yet
        (BlockTable((1, 2), (0, 16), 16, 16), [*range(16)], True),
        (BlockTable((), (), 16, 16), [16], None),
    ],
)
def test_which_mask_a_sequence_has(table: BlockTable, positions: list[int], causal: bool | None) -> None:
    rows = range(2, 2 + len(positions))
    assert mask_of((rows,), (table,), np.array([0, 0, *positions, 0])) is causal
    # A row that sees all keys goes with either mask.
    alone = BlockTable((4,), (0,), 9, 16)
    both = mask_of((rows, range(1)), (table, alone), np.array([8, 0, *positions, 0]))
    assert both is causal


def test_sequences_of_different_masks_have_none_together() -> None:
    rows, tables = (range(2), range(2, 4)), (GAPS, GAPS)
    assert mask_of(rows, tables, np.array([138, 139, 200, 201])) is None


@pytest.mark.parametrize("kind", [FlashInfer, FlashAttention3])
def test_a_library_that_is_not_installed_says_so(kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flashinfer", "flash_attn_interface", "flash_attn_3"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(flash_attention3, "find_spec", lambda _name: None)
    drawn = Sequences.drawn((1,), (5,), (4, 2, 16), 16, torch.bfloat16, CPU)
    with pytest.raises(ImportError):
        kind(Pages.of(drawn.rows, drawn.tables), Shape.of(drawn.q, drawn.kv.k), drawn.scale, CPU)
