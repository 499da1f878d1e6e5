"""Forward: hidden states of the wanted rows, by one native call, piece by piece, or by turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from distkv.engine.attention.dist_attention import dist_attention
from distkv.engine.step import forward as forward_module
from distkv.engine.step.batch import Batch, PlannedSeq
from distkv.engine.step.forward import Forward
from distkv.engine.step.prepare import prepare
from distkv.engine.step.tables import BlockTables
from distkv.token_ids import unpack
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_worker import SeqStep
from tests.checkpoints import prompt_ids, reference_logits, variant
from tests.engine.harness import GREEDY, Engine, seq_step
from tests.engine.lent import Lent

ATOL = 1e-4
PROMPT = prompt_ids(30)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, num_slots=128)


def batch_of(engine: Engine, *seqs: SeqStep, microbatch: int = 0) -> Batch:
    planned = [PlannedSeq(seq, unpack(seq.tokens)) for seq in seqs]
    model = engine.model
    return prepare(
        1, planned, engine.pool, BlockTables(engine.pool), model.config, engine.peers, model.device, microbatch
    )


@torch.inference_mode()
def logits_of(engine: Engine, forward: Forward, batches: Sequence[Batch]) -> list[Tensor]:
    return [engine.model.logits(hidden) for hidden in forward(batches, Counters())]


def test_only_wanted_rows_come_back(engine: Engine, path: Path) -> None:
    batch = batch_of(
        engine,
        seq_step(PROMPT, 0, 30, engine.table(30), name="a", sample=GREEDY),
        seq_step(PROMPT, 0, 9, engine.table(12), name="b"),
        seq_step(PROMPT, 0, 12, engine.table(12), name="c", sample=GREEDY),
    )
    (logits,) = logits_of(engine, Forward(engine.model, engine.pool), [batch])
    torch.testing.assert_close(logits, reference_logits(path, PROMPT)[[29, 11]], atol=ATOL, rtol=0)


def test_nothing_to_compute(engine: Engine) -> None:
    counters = Counters()
    assert Forward(engine.model, engine.pool)([], counters) == []
    assert counters.attend_wait_s == 0


def test_one_native_call_computes_what_the_pieces_do(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no native call, both are the pieces."""
    step = seq_step(PROMPT, 0, 30, engine.table(30), sample=GREEDY)
    (whole,) = logits_of(engine, Forward(engine.model, engine.pool), [batch_of(engine, step)])
    monkeypatch.setattr(type(engine.model), "layers_over", lambda self, kvs: None)
    (pieces,) = logits_of(engine, Forward(engine.model, engine.pool), [batch_of(engine, step)])
    torch.testing.assert_close(whole, pieces, atol=1e-5, rtol=0)


def test_a_native_call_is_only_for_a_batch_without_links(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would compute of lent keys means nothing: the pool is poisoned there."""
    lent = Lent(engine)
    native: list[int] = []
    expected = logits_of(engine, Forward(engine.model, engine.pool), [batch_of(engine, lent.step())])[0]

    def layers_over(*_: object) -> object:
        return lambda x, *_: native.append(len(x)) or torch.zeros(1, engine.model.config.hidden_size)

    monkeypatch.setattr(type(engine.model), "layers_over", layers_over)
    forward = Forward(engine.model, engine.pool)
    local = seq_step(PROMPT, 0, 5, engine.table(8), name="local", sample=GREEDY)
    with torch.inference_mode():
        forward([batch_of(engine, local)], Counters())
    assert native == [5]
    (found,) = logits_of(engine, forward, [batch_of(engine, lent.step())])
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    assert native == [5]


def test_microbatches_take_turns_layer_by_layer(engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attends to keys that the first has stored in the same layer."""
    turns: list[tuple[int, int]] = []

    def recorded(layer: int, pieces: object, batch: Batch, *rest: object) -> object:
        turns.append((layer, len(batch.tokens)))
        return dist_attention(layer, pieces, batch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(forward_module, "dist_attention", recorded)
    table = engine.table(30)
    first = batch_of(engine, seq_step(PROMPT, 0, 17, table, sample=GREEDY))
    second = batch_of(engine, seq_step(PROMPT, 17, 30, table, sample=GREEDY), microbatch=1)
    logits = logits_of(engine, Forward(engine.model, engine.pool), [first, second])
    torch.testing.assert_close(torch.cat(logits), reference_logits(path, PROMPT)[[16, 29]], atol=ATOL, rtol=0)
    assert turns == [(layer, rows) for layer in range(engine.model.config.num_layers) for rows in (17, 13)]


def test_waiting_for_creditors_is_counted(engine: Engine) -> None:
    counters = Counters()
    lent = Lent(engine)
    batches = [batch_of(engine, lent.step())]
    with torch.inference_mode():
        Forward(engine.model, engine.pool)(batches, counters)
    assert 0 < counters.attend_wait_s == batches[0].waited_s < counters.model_s
