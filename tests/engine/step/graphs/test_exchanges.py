"""Decode steps with keys at creditors in captured pieces: the tokens of the model, and those of an engine without
graphs, however batches, tables and creditors change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.step.graphs.exchange_tensors import MOST_PARTIALS
from tests.checkpoints import prompt_ids, reference_greedy, variant
from tests.engine.async_device import AsyncHost, RowTorchBackend
from tests.engine.harness import Engine
from tests.engine.remote_sequence import P, RemoteSequence, tokens_of


def test_two_pieces_for_a_layer(engine: Engine, path: Path, device: AsyncHost) -> None:
    """Twenty tokens, over blocks that are new, two creditors and one more span on the way."""
    one = RemoteSequence(engine, "r", prompt_ids(30))
    tokens = tokens_of(one)
    one.lend("x", 3)
    one.lend("y", 2)
    tokens += tokens_of(one)
    replayed, captured = device.replayed, device.captured
    tokens += [tokens_of(one)[0] for _ in range(9)]
    one.lend("x", 1)
    tokens += [tokens_of(one)[0] for _ in range(9)]
    layers = engine.model.config.num_layers
    assert device.replayed == replayed + 18 * (2 * layers + 1)
    assert device.captured == captured
    assert tokens == reference_greedy(path, one.prompt, 20)


def test_rows_with_and_without_creditors(path: Path, device: AsyncHost) -> None:
    """Batches of 1 to 18 rows in changing orders beside an engine without graphs: none of a row's spans, one, or as
    many as are merged in a piece, and now and then one more."""
    engines = (
        Engine(path, device=device, num_slots=1024),
        Engine(path, device=CpuDevice(RowTorchBackend()), num_slots=1024),
    )
    pairs = [
        [RemoteSequence(engine, str(index), prompt_ids(12 + 3 * index, seed=index), room=25) for engine in engines]
        for index in range(18)
    ]
    for pair in pairs:
        assert tokens_of(pair[0]) == tokens_of(pair[1])
    chance, pieces = random.Random(4), engines[0].runner._graphs.exchanges
    assert pieces is not None
    for _ in range(40):
        for pair in chance.sample(pairs, 3):
            if len(pair[0].remote) <= MOST_PARTIALS and pair[0].end // P - pair[0].lent > 1:
                creditor = chance.choice("xyz")
                for one in pair:
                    one.lend(creditor, 1)
        chosen = chance.sample(pairs, chance.choice([1, 2, 4, 7, 18]))
        assert tokens_of(*(one for one, _ in chosen)) == tokens_of(*(other for _, other in chosen))
    assert sorted(pieces._by_frames) == [1, 4, 16, 64] and not pieces._by_mail


@pytest.mark.parametrize(("verb", "layer"), [("plan", 0), ("send", 0), ("collect", 1)])
def test_a_creditor_that_fails_loses_its_own_rows_only(
    engine: Engine, path: Path, device: AsyncHost, verb: str, layer: int
) -> None:
    lost, kept, alone = (RemoteSequence(engine, name, prompt_ids(20, seed=i), room=8) for i, name in enumerate("abc"))
    for one in (lost, kept, alone):
        tokens_of(one)
    lost.lend("x", 2)
    kept.lend("y", 2)
    tokens_of(lost, kept, alone)
    engine.peers.creditors["x"].fail_at = (verb, layer)
    results = engine.run(lost.step(), kept.step(), alone.step())
    assert [result.status for result in results] == ["lost", "ok", "ok"]
    assert [one.token for one in results[1:]] == [reference_greedy(path, one.prompt, 3)[2] for one in (kept, alone)]
    # The lost one's partials are nobody's in the next step.
    results = engine.run(kept.step(), alone.step())
    assert [one.token for one in results] == [reference_greedy(path, one.prompt, 4)[3] for one in (kept, alone)]


def test_windows(tmp_path: Path, device: AsyncHost) -> None:
    """Spans partly before the window of some layers, and own blocks from there on."""
    path = variant(tmp_path, "mistral-window", sliding_window=10)
    engine = Engine(path, device=device, num_slots=64)
    one = RemoteSequence(engine, "r", prompt_ids(14), room=12)
    tokens = tokens_of(one)
    one.lend("x", 2)
    replayed = device.replayed
    tokens += [tokens_of(one)[0] for _ in range(6)]
    assert tokens == reference_greedy(path, one.prompt, 7)
    assert device.replayed > replayed


def test_a_failed_capture_is_reported_and_steps_go_on(engine: Engine, path: Path, device: AsyncHost) -> None:
    one = RemoteSequence(engine, "r", prompt_ids(20), room=8)
    tokens = tokens_of(one)
    one.lend("x", 2)
    device.fails = True
    with capture_logs() as logs:
        tokens += [tokens_of(one)[0] for _ in range(3)]
    assert tokens == reference_greedy(path, one.prompt, 4)
    assert [log["of"] for log in logs] == ["exchanges"]
    assert engine.runner.graphs == "given up: the test says so"
