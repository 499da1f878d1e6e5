"""How a request is split, and the exact attention over it."""

from __future__ import annotations

import pytest
import torch

from distkv.bench.split_attention.ring import PIECE_BLOCKS, pieces_of
from distkv.bench.split_attention.split import Share, Split, exact_attention
from distkv.engine.device.cpu import CpuDevice
from distkv.kernels.attention.reference import micro_attention


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("rows", [1, 6, 8])
def test_everything_is_at_one_process(processes: int, rows: int) -> None:
    split = Split(context=256, processes=processes, layers=1, heads=8, dim=16, rows=rows)
    for parts, count in ((split.blocks_of, 16), (split.heads_of, 8), (split.rows_of, rows)):
        assert [one for process in range(processes) for one in parts(process)] == list(range(count))
    assert max(len(split.rows_of(process)) for process in range(processes)) == -(-rows // processes)


def test_exact_attention_is_that_of_the_reference() -> None:
    """Over all blocks in one pool; the blocks of the two are drawn apart."""
    split = Split(context=64 * 16, processes=2, layers=2, heads=2, dim=16, rows=3)
    share = Share(split, range(split.blocks), range(2), split.rows)
    for layer in range(split.layers):
        kv = share.pool.layer(layer)
        every = slice(0, split.blocks)
        (blocks,) = share.metadata.block_tables
        expected, _ = micro_attention(
            split.queries()[layer],
            kv.keys(every),
            kv.values(every),
            blocks,
            share.metadata.positions,
            share.config.scale,
        )
        torch.testing.assert_close(exact_attention(split, layer), expected, rtol=1e-9, atol=1e-12)
    assert not torch.equal(exact_attention(split, 0), exact_attention(split, 1))


def test_a_share_has_its_blocks_and_heads() -> None:
    split = Split(context=64, processes=2, layers=2, heads=4, dim=16)
    whole = Share(split, range(4), range(4), 1)
    part = Share(split, split.blocks_of(1), split.heads_of(1), 1)
    for layer in range(2):
        ours, all_of_it = part.pool.layer(layer), whole.pool.layer(layer)
        assert torch.equal(ours.keys(slice(0, 2)), all_of_it.keys(slice(2, 4))[:, 2:])
        assert torch.equal(ours.values(slice(0, 2)), all_of_it.values(slice(2, 4))[:, 2:])


def test_a_missing_share_is_no_rounding() -> None:
    """What the benchmark's tolerance has to tell apart."""
    split = Split(context=4096, processes=2, layers=1, heads=2, dim=64)
    half = Share(split, split.blocks_of(0), range(2), 1)
    out, _ = CpuDevice().backend.attend(split.queries()[0], half.pool.layer(0), half.metadata, half.config.scale)
    exact = exact_attention(split, 0)
    assert float((out - exact).abs().max() / exact.abs().max()) > 0.2


@pytest.mark.parametrize("blocks", [1, PIECE_BLOCKS, PIECE_BLOCKS + 1, 3 * PIECE_BLOCKS])
def test_pieces_cover_all_blocks(blocks: int) -> None:
    pieces = pieces_of(blocks)
    assert [block for piece in pieces for block in piece] == list(range(blocks))
    assert max(map(len, pieces)) <= PIECE_BLOCKS
