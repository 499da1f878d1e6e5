"""Decode steps that are one graph: the same tokens and the same keys as without, however batches and tables change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.step.graphs import decode
from distkv.engine.step.graphs.decode import DecodeGraphs
from distkv.wire.messages.common import Run
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import Sampling, SeqStep
from tests.checkpoints import prompt_ids, reference_greedy, variant
from tests.engine.async_device import AsyncHost, RowTorchBackend
from tests.engine.harness import GREEDY, Engine, seq_step, without

DRAWN = Sampling(temperature=1.1, top_k=30, top_p=0.9, seed=7)
SCORED = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, logprobs=3)
BIASED = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, logit_bias={5: 3.0}, repetition_penalty=1.3)


class Sequence:
    """A request whose blocks come one by one, backwards in the pool, on both engines alike."""

    def __init__(self, name: str, prompt: list[int], slots: list[int], sample: Sampling = GREEDY) -> None:
        self.name, self.prompt, self.slots, self.sample = name, prompt, slots, sample
        self.end = 0

    def next(self, block_tokens: int, attempt: int = 0) -> SeqStep:
        """The prompt, then one token after another."""
        start, self.end = self.end, self.end + 1 if self.end else len(self.prompt)
        count = -(-self.end // block_tokens)
        table = tuple(Run(block, slot, 1) for block, slot in enumerate(self.slots[:count]))
        history = self.sample.repetition_penalty != 1
        ids = self.prompt if not start else ()
        return seq_step(
            ids, start, self.end, table, name=self.name, sample=self.sample, attempt=attempt, history=history
        )


@pytest.fixture
def plain(path: Path) -> Engine:
    """Without graphs."""
    return Engine(path, device=CpuDevice(RowTorchBackend()), num_slots=128)


def both(engine: Engine, plain: Engine, steps: list[SeqStep]) -> tuple[SeqResult, ...]:
    """What both found."""
    results = engine.run(*steps)
    expected = plain.run(*steps)
    for one, other in zip(results, expected, strict=True):
        assert (one.token, one.status) == (other.token, other.status)
        assert (one.logprobs is None) == (other.logprobs is None)
        if one.logprobs is not None and other.logprobs is not None:
            assert one.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-4)
    return results


def same_pools(engine: Engine, plain: Engine) -> None:
    torch.testing.assert_close(
        engine.pool._slots.view(torch.float32), plain.pool._slots.view(torch.float32), atol=1e-5, rtol=0, equal_nan=True
    )


def test_a_step_is_one_graph_and_one_copy(engine: Engine, path: Path, device: AsyncHost) -> None:
    """From 30 tokens past 40, where another graph goes on; blocks are new on the way."""
    ids = prompt_ids(30)
    one = Sequence("r", ids, list(range(40, 20, -1)))
    tokens = [engine.run(one.next(4))[0].token for _ in range(2)]
    copied, replayed = device.copies_in, device.replayed
    tokens += [engine.run(one.next(4))[0].token for _ in range(18)]
    assert engine.runner.graphs == "captured"
    assert (device.copies_in, device.replayed) == (copied + 18, replayed + 18)
    assert tokens == reference_greedy(path, ids, 20)


def test_batches_of_every_size_and_tables_that_change(engine: Engine, plain: Engine) -> None:
    """Sequences come, go and come back in other blocks; each step has another number of rows."""
    samples = [GREEDY, DRAWN, SCORED, BIASED, GREEDY, SCORED, DRAWN, GREEDY, GREEDY]
    seqs = [
        Sequence(str(i), prompt_ids(3 + 4 * i, seed=i), list(range(12 * i, 12 * i + 12))[:: 1 if i % 2 else -1], sample)
        for i, sample in enumerate(samples)
    ]
    for one in seqs:
        both(engine, plain, [one.next(4)])
    for chosen in ([0], [0, 1, 2], [2, 0, 1], list(range(9)), [8, 3], list(range(8, -1, -1)), [3, 4, 5, 6, 7]):
        both(engine, plain, [seqs[i].next(4) for i in chosen])
    # One is preempted: its blocks are others', and it is computed again into new ones.
    moved = seqs[1]
    moved.slots, moved.end = list(range(127, 108, -1)), 0
    both(engine, plain, [moved.next(4, attempt=1)])
    for chosen in ([1, 0], [0, 1, 2, 3, 4], [1]):
        both(engine, plain, [seqs[i].next(4, attempt=int(i == 1)) for i in chosen])
    same_pools(engine, plain)


def test_requests_of_one_name_do_not_see_each_other(engine: Engine, plain: Engine) -> None:
    for seed, slots in [(0, [5, 4, 3, 2]), (1, [9, 4, 8, 7])]:
        one = Sequence("r", prompt_ids(9, seed=seed), slots)
        for _ in range(5):
            both(engine, plain, [one.next(4)])
        engine.runner.forget(["r"])
        plain.runner.forget(["r"])


def test_windows(tmp_path: Path, device: AsyncHost) -> None:
    """Layers with and without; a table that has let go of what lies before the window."""
    path = variant(tmp_path, "mistral-window", sliding_window=10)
    engine = Engine(path, device=device, num_slots=64)
    ids, table = prompt_ids(30), engine.table(40)
    engine.run(seq_step(ids, 0, 30, table, sample=GREEDY))
    expected = reference_greedy(path, ids, 6)
    replayed = device.replayed
    for end in range(31, 36):
        kept = without(tuple(Run(i, table[0].first_slot + i, 1) for i in range(table[0].num_blocks)), 0, 4)
        (result,) = engine.run(seq_step((), end - 1, end, kept, sample=GREEDY))
        assert result.token == expected[end - 30]
    assert device.replayed == replayed + 5


def test_what_no_graph_computes(engine: Engine, path: Path, device: AsyncHost) -> None:
    """A context beyond the tables; blocks with a gap; keys at a creditor; more rows than the largest graph has."""
    ids = prompt_ids(20)
    expected = reference_greedy(path, ids, 4)
    engine.runner._graphs.whole = DecodeGraphs(engine.model, engine.pool, max_blocks=5)
    table = engine.table(24, scattered=True)
    assert engine.run(seq_step(ids[:-1], 0, 19, table[:5]))[0].token is None
    replayed = device.replayed
    assert engine.run(seq_step(ids, 19, 20, table[:5], sample=GREEDY))[0].token == expected[0]
    assert device.replayed == replayed + 1
    assert engine.run(seq_step((), 20, 21, table, sample=GREEDY))[0].token == expected[1]
    engine.runner._graphs.whole = DecodeGraphs(engine.model, engine.pool)
    engine.add_creditor("x", num_slots=4)
    span = engine.lend("x", table, 1, 2)
    step = seq_step((), 21, 22, without(table, 1, 2), remote=(span,), sample=GREEDY)
    assert engine.run(step)[0].token == expected[2]
    engine.run(seq_step(prompt_ids(23), 22, 23, without(table, 1, 2), sample=GREEDY))
    engine.run(seq_step(prompt_ids(65), 0, 65, engine.table(65), name="s", sample=GREEDY))
    assert device.replayed == replayed + 1


def test_a_small_chunk_is_one_graph(engine: Engine, path: Path, device: AsyncHost) -> None:
    """Each of its rows sees what those before it have stored, and the keys of earlier chunks."""
    ids, table, start = prompt_ids(50), engine.table(60, scattered=True), 0
    for rows in (1, 2, 3, 17, 27):
        sample = GREEDY if start + rows == 50 else None
        (result,) = engine.run(seq_step(ids, start, start + rows, table, sample=sample))
        start += rows
    tokens = [result.token]
    tokens += [engine.run(seq_step((), end - 1, end, table, sample=GREEDY))[0].token for end in range(51, 54)]
    assert tokens == reference_greedy(path, ids, 4)
    assert device.replayed == 5 + 3


def test_chunks_beside_decodes(engine: Engine, plain: Engine, device: AsyncHost) -> None:
    """Rows that want a token and rows that do not, in any order; drawn, scored and biased."""
    samples = [GREEDY, DRAWN, SCORED, BIASED]
    seqs = [
        Sequence(str(i), prompt_ids(9 + 5 * i, seed=i), list(range(20 * i, 20 * i + 20)), sample)
        for i, sample in enumerate(samples)
    ]
    both(engine, plain, [seqs[0].next(4), seqs[2].next(4)])
    replayed = device.replayed
    unfinished = Sequence("chunk", prompt_ids(11, seed=9), list(range(100, 106)))
    first = seq_step(unfinished.prompt, 0, 6, (Run(0, 100, 2),), name="chunk")
    results = both(engine, plain, [seqs[1].next(4), first, seqs[0].next(4), seqs[3].next(4), seqs[2].next(4)])
    assert [result.token is None for result in results] == [False, True, False, False, False]
    last = seq_step(unfinished.prompt, 6, 11, (Run(0, 100, 3),), name="chunk", sample=GREEDY)
    both(engine, plain, [last, *(one.next(4) for one in seqs)])
    both(engine, plain, [seq_step(unfinished.prompt, 0, 5, (Run(0, 110, 2),), name="alone")])
    assert device.replayed == replayed + 3
    same_pools(engine, plain)


def test_a_chunk_behind_many_keys_reads_them_once(
    engine: Engine, path: Path, device: AsyncHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "CHUNK_PAIRS", 100)
    ids, table = prompt_ids(25), engine.table(28)
    for start, end, graphs in ((0, 10, 1), (10, 14, 2), (14, 20, 2), (20, 24, 3)):
        engine.run(seq_step(ids, start, end, table))
        assert device.replayed == graphs, (start, end)
    assert engine.run(seq_step(ids, 24, 25, table, sample=GREEDY))[0].token == reference_greedy(path, ids, 1)[0]
    assert device.replayed == 4


def test_rows_that_fill_up_are_stored_nowhere(engine: Engine) -> None:
    """5 rows in a graph for 8. The pool was full of ones."""
    ids = prompt_ids(8)
    engine.run(seq_step(ids, 0, 8, engine.table(8), name="other"))
    before = [engine.pool.slot(slot).clone() for slot in range(engine.pool.num_slots)]
    table = engine.table(8)
    engine.run(seq_step(ids, 0, 5, table))
    changed = [slot for slot, held in enumerate(before) if not torch.equal(engine.pool.slot(slot), held)]
    assert changed == [table[0].first_slot, table[0].first_slot + 1]
    values = engine.pool.layer(0).values(slice(changed[1], changed[1] + 1))
    assert values[0, :, 0].isfinite().all() and values[0, :, 1:].isnan().all()


def test_a_failed_capture_is_reported_and_steps_go_on(engine: Engine, path: Path, device: AsyncHost) -> None:
    ids, table = prompt_ids(9), engine.table(20)
    expected = reference_greedy(path, ids, 5)
    assert engine.run(seq_step(ids, 0, 9, table, sample=GREEDY))[0].token == expected[0]
    assert engine.runner.graphs == "captured"
    device.fails = True
    with capture_logs() as logs:
        tokens = [engine.run(seq_step((), end - 1, end, table, sample=GREEDY))[0].token for end in (10, 11)]
    assert tokens == expected[1:3]
    told = {"event": "no CUDA graphs", "log_level": "warning", "size": 1, "of": "whole steps"}
    assert logs == [{**told, "reason": "the test says so"}]
    assert engine.runner.graphs == "given up: the test says so"


def test_a_division_holds_for_many_steps(engine: Engine) -> None:
    """Keys are divided again when a batch changes or contexts outgrow what was planned, not at every step."""
    one, other = Sequence("a", prompt_ids(5), list(range(0, 30))), Sequence("b", prompt_ids(7), list(range(30, 60)))
    for seq in (one, other):
        engine.run(seq.next(4))
    for _ in range(20):
        engine.run(one.next(4), other.next(4))
    assert engine.runner._graphs is not None
    (graph,) = (graph for (size, _), graph in engine.runner._graphs.whole._graphs.items() if size == 2)
    assert graph._attention.planned == 1
    engine.run(other.next(4), one.next(4))
    assert graph._attention.planned == 2
