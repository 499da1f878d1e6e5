"""Captured pieces: the same numbers as eager ones, in the same places, for batches of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from structlog.testing import capture_logs
from torch import Tensor

from distkv.engine.step.batch import Batch, PlannedSeq
from distkv.engine.step.graphs.pieces import EagerPieces, Pieces
from distkv.engine.step.graphs.piecewise import PiecewiseGraphs, ReplayedPieces
from distkv.engine.step.prepare import prepare
from distkv.engine.step.tables import BlockTables
from distkv.token_ids import unpack
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import SeqStep
from tests.checkpoints import prompt_ids, reference_greedy, reference_logits
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step

PROMPT = prompt_ids(50)


def test_prompt_and_decode(engine: Engine, path: Path, device: AsyncHost) -> None:
    """A prompt of 50 rows is computed in pieces, each captured once; decode steps are one graph."""
    table = engine.table(60)
    steps = [seq_step(PROMPT, 0, 50, table, sample=GREEDY)]
    steps += [seq_step((), end - 1, end, table, sample=GREEDY) for end in range(51, 58)]
    tokens = [engine.run(step)[0].token for step in steps]
    assert tokens == reference_greedy(path, PROMPT, 8)
    pieces = engine.model.config.num_layers + 1
    assert (device.captured, device.replayed) == (pieces + 1, pieces + 7)


def test_every_size_is_the_same_model(engine: Engine, path: Path) -> None:
    table = engine.table(50, scattered=True)
    logits = engine.chunked_logits(PROMPT, [1, 2, 3, 17, 27], table)
    torch.testing.assert_close(logits, reference_logits(path, PROMPT), atol=1e-4, rtol=0)


def test_large_batches_are_not_captured(engine: Engine, path: Path, device: AsyncHost) -> None:
    ids = prompt_ids(65)
    logits = engine.chunked_logits(ids, [65], engine.table(65))
    torch.testing.assert_close(logits, reference_logits(path, ids), atol=1e-4, rtol=0)
    assert device.captured == 0


def test_rows_that_fill_up_are_stored_nowhere(engine: Engine) -> None:
    """5 rows in pieces for 8. The pool was full of ones."""
    engine.run(seq_step(PROMPT, 0, 8, engine.table(8)))
    before = [engine.pool.slot(slot).clone() for slot in range(engine.pool.num_slots)]
    table = engine.table(8)
    engine.run(seq_step(PROMPT, 0, 5, table))
    changed = [slot for slot, held in enumerate(before) if not torch.equal(engine.pool.slot(slot), held)]
    assert changed == [table[0].first_slot, table[0].first_slot + 1]
    values = engine.pool.layer(0).values(slice(changed[1], changed[1] + 1))
    assert values[0, :, 0].isfinite().all() and values[0, :, 1:].isnan().all()


def test_without_graphs_it_goes_on(engine: Engine, path: Path, device: AsyncHost) -> None:
    device.fails = True
    with capture_logs() as logs:
        logits = engine.chunked_logits(PROMPT, [20, 30], engine.table(50))
    torch.testing.assert_close(logits, reference_logits(path, PROMPT), atol=1e-4, rtol=0)
    told = {"event": "no CUDA graphs", "log_level": "warning", "size": 32, "of": "pieces", "reason": "the test says so"}
    assert logs == [told]
    assert device.replayed == 0


def test_benchmarks_can_say_what_became_of_graphs(engine: Engine, device: AsyncHost) -> None:
    step = seq_step(PROMPT, 0, 5, engine.table(8), sample=GREEDY)
    assert engine.runner.graphs == "captured"
    device.fails = True
    engine.run(step)
    assert engine.runner.graphs == "given up: the test says so"


def batch_of(engine: Engine, *seqs: SeqStep) -> Batch:
    planned = [PlannedSeq(seq, unpack(seq.tokens)) for seq in seqs]
    model, tables = engine.model, BlockTables(engine.pool)
    return prepare(1, planned, engine.pool, tables, model.config, engine.peers, model.device)


def next_of(pieces: Pieces, batch: Batch, engine: Engine) -> Iterator[Tensor]:
    """The queries of each layer, with something in place of attention, and the last hidden states."""
    heads, generator = engine.model.heads, torch.Generator().manual_seed(3)
    pieces.begin()
    for layer in range(engine.model.config.num_layers):
        yield pieces.store(layer).clone()
        attended = torch.randn(len(batch.tokens), heads.queries, heads.dim, generator=generator)
        if layer < engine.model.config.num_layers - 1:
            pieces.advance(layer, attended)
    yield pieces.end(attended).clone()


def kept(engine: Engine, table: tuple[Run, ...]) -> Tensor:
    """The bytes of the blocks of a sequence, all layers."""
    return torch.stack([engine.pool.slot(run.first_slot + i) for run in table for i in range(run.num_blocks)])


@torch.inference_mode()
def test_captured_pieces_compute_and_store_what_eager_ones_do(engine: Engine, device: AsyncHost) -> None:
    """3 rows in pieces for 4, whose sums may be rounded otherwise."""
    with device.stream():
        tables = [engine.table(4) for _ in range(2)]
        batches = [batch_of(engine, seq_step(PROMPT, 0, 3, table, sample=GREEDY)) for table in tables]
        eager = list(next_of(EagerPieces(engine.model, engine.pool, batches[0]), batches[0], engine))
        pieces = PiecewiseGraphs(engine.model, engine.pool).pieces(batches[1])
        assert isinstance(pieces, ReplayedPieces)
        captured = list(next_of(pieces, batches[1], engine))
    for one, other in zip(eager, captured, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    numbers = [kept(engine, table).view(engine.model.dtype) for table in tables]
    torch.testing.assert_close(numbers[0], numbers[1], atol=1e-5, rtol=0, equal_nan=True)


@torch.inference_mode()
def test_each_microbatch_has_tensors_of_its_own(engine: Engine, device: AsyncHost) -> None:
    """Two of the same size, layer by layer, do not disturb each other."""
    graphs = PiecewiseGraphs(engine.model, engine.pool)
    with device.stream():
        batches = [
            batch_of(engine, seq_step(PROMPT[start:], 0, 3, engine.table(4), name=str(start), sample=GREEDY))
            for start in (0, 20)
        ]
        alone = [list(next_of(graphs.pieces(batch), batch, engine)) for batch in batches]
        turns = [next_of(graphs.pieces(batch, index), batch, engine) for index, batch in enumerate(batches)]
        together = list(zip(*turns, strict=True))
    assert device.captured == 2 * (engine.model.config.num_layers + 1)
    for index, expected in enumerate(alone):
        for one, turn in zip(expected, together, strict=True):
            assert torch.equal(one, turn[index])
    assert not torch.equal(alone[0][-1], alone[1][-1])


def test_a_batch_takes_the_smallest_size_that_holds_it(engine: Engine, device: AsyncHost) -> None:
    graphs, per_size = PiecewiseGraphs(engine.model, engine.pool, sizes=(2, 8)), engine.model.config.num_layers + 1
    with device.stream(), torch.inference_mode():
        for rows, sizes in [(2, 1), (1, 1), (3, 2), (8, 2)]:
            graphs.pieces(batch_of(engine, seq_step(PROMPT, 0, rows, engine.table(8))))
            assert device.captured == sizes * per_size
        assert isinstance(graphs.pieces(batch_of(engine, seq_step(PROMPT, 0, 9, engine.table(12)))), EagerPieces)
    assert device.captured == 2 * per_size


def test_after_a_failed_capture_all_sizes_are_eager(engine: Engine, device: AsyncHost) -> None:
    graphs = PiecewiseGraphs(engine.model, engine.pool)
    with device.stream(), torch.inference_mode(), capture_logs() as logs:
        assert isinstance(graphs.pieces(batch_of(engine, seq_step(PROMPT, 0, 1, engine.table(4)))), ReplayedPieces)
        device.fails = True
        assert isinstance(graphs.pieces(batch_of(engine, seq_step(PROMPT, 0, 2, engine.table(4)))), EagerPieces)
        device.fails = False
        assert isinstance(graphs.pieces(batch_of(engine, seq_step(PROMPT, 0, 1, engine.table(4)))), EagerPieces)
    assert [log["event"] for log in logs] == ["no CUDA graphs"], "once"
    assert graphs.problem == "the test says so"
