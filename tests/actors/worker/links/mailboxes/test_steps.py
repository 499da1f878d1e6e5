"""Steps whose queries and partials pass a mailbox: two devices, real links, no host in the path of a layer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.actors.links import DEADLINE_S
from tests.actors.worker.links.mailboxes.creditors import Creditors, decode, run
from tests.checkpoints import prompt_ids, reference_greedy
from tests.engine.async_device import AsyncHost
from tests.engine.harness import Engine, seq_step
from tests.engine.lent import Lent
from tests.engine.remote_sequence import RemoteSequence, tokens_of


def test_the_token_of_one_instance_without_a_frame_for_a_layer(
    engine: Engine, creditors: Creditors, lent: Lent, path: Path
) -> None:
    runner, layers, before = creditors.runner(), engine.model.config.num_layers, creditors.counted("x")
    for step_id in range(1, 8):
        (result,) = run(runner, decode(lent), step_id=step_id)
        assert (result.status, result.token) == ("ok", lent.expected(path)), step_id
    # Each layer of a step has a number of its own, at both ends of both mailboxes.
    assert sorted(creditors.posted) == sorted([*range(1, 7 * layers + 1)] * 4)
    assert creditors.counted("x") == creditors.counted("y") == before + 7 * layers
    assert creditors.pins(lent) == 0


def test_a_link_takes_no_stream_that_is_captured(
    engine: Engine, creditors: Creditors, lent: Lent, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are a few of those, given out in turn, and one of them is that of the steps."""
    runner = creditors.runner()

    def stream() -> None:
        raise AssertionError("a stream of steps for a link")

    monkeypatch.setattr(engine.model.device, "stream", stream)
    (result,) = run(runner, decode(lent))
    assert (result.status, result.token) == ("ok", lent.expected(path)) and creditors.posted


def test_a_step_is_one_graph(engine: Engine, path: Path, creditors: Creditors) -> None:
    """Twenty tokens, over blocks that are new, two creditors and one more span on the way; the tokens of a model."""
    for name in "xy":
        engine.add_creditor(name)
        creditors.add(name)
    device, runner = engine.model.device, creditors.runner()
    assert isinstance(device, AsyncHost)
    one = RemoteSequence(engine, "r", prompt_ids(30))
    tokens = tokens_of(one, runner=runner)
    one.lend("x", 3)
    one.lend("y", 2)
    tokens += tokens_of(one, runner=runner)
    replayed = device.replayed
    for step in range(18):
        if step == 9:
            one.lend("x", 1)
        tokens += tokens_of(one, runner=runner)
    assert device.replayed == replayed + 18
    assert tokens == reference_greedy(path, one.prompt, 20)
    layers = engine.model.config.num_layers
    assert sorted(creditors.posted) == sorted([*range(1, 19 * layers + 1)] * 4), "both ends of both mailboxes"


def test_rows_with_and_without_creditors_in_one_graph(engine: Engine, path: Path, creditors: Creditors) -> None:
    """Batches of changing rows: keys at one creditor, at the other, at both, at none."""
    for name in "xy":
        engine.add_creditor(name)
        creditors.add(name)
    device, runner = engine.model.device, creditors.runner()
    assert isinstance(device, AsyncHost)
    seqs = [RemoteSequence(engine, str(i), prompt_ids(12 + i, seed=i), room=8) for i in range(4)]
    found = [tokens_of(one, runner=runner) for one in seqs]
    for one, names in zip(seqs, ("x", "y", "xy", ""), strict=True):
        for name in names:
            one.lend(name, 1)
    replayed = device.replayed
    for chosen in ([0, 1, 2, 3], [3, 2], [0, 3], [1], [2, 1, 0], [3, 0, 2, 1]):
        for i, token in zip(chosen, tokens_of(*(seqs[i] for i in chosen), runner=runner), strict=True):
            found[i].append(token)
    assert device.replayed == replayed + 6
    assert found == [reference_greedy(path, one.prompt, len(tokens)) for one, tokens in zip(seqs, found, strict=True)]


def test_over_a_network_and_for_chunks_frames_travel(creditors: Creditors, lent: Lent, path: Path) -> None:
    (result,) = run(creditors.runner("tcp"), decode(lent))
    assert (result.status, result.token, creditors.posted) == ("ok", lent.expected(path), [])
    runner = creditors.runner("unix")
    for step_id, (start, end) in enumerate([(44, 50), (49, 50), (44, 50), (49, 50)]):
        (result,) = run(runner, lent.step(start, end), step_id=step_id)
        assert (result.status, result.token) == ("ok", lent.expected(path))
        assert bool(creditors.posted) == (end - start == 1)
        creditors.posted.clear()


def test_what_the_device_waits_and_computes_is_counted(
    engine: Engine, creditors: Creditors, lent: Lent, path: Path
) -> None:
    """As it is where the host sees each layer: by it instances decide what borrowing costs, and what serving does."""
    runner = creditors.runner()
    run(runner, decode(lent))
    waited_s = runner.counters.attend_wait_s
    before = [engine.peers.creditors[name].server.counters.serve_s for name in ("x", "y")]
    creditors.before_layer = lambda _name, _layer: time.sleep(0.05)
    run(runner, decode(lent), step_id=2)
    layers = engine.model.config.num_layers
    assert 0.04 * layers <= runner.counters.attend_wait_s - waited_s < DEADLINE_S
    for name, serve_s in zip(("x", "y"), before, strict=True):
        assert 0.04 * layers <= engine.peers.creditors[name].server.counters.serve_s - serve_s < DEADLINE_S


def test_two_microbatches_have_mailboxes_of_their_own(engine: Engine, creditors: Creditors, lent: Lent) -> None:
    other = Lent(engine, "other", 6, gaps=lent.gaps)
    engine.run(other.step(48, 49))
    seqs = decode(lent), decode(other)
    expected = engine.run(*seqs)
    runner = creditors.runner(microbatches=2)
    for step_id in range(1, 4):
        assert run(runner, *seqs, step_id=step_id) == expected
    layers = engine.model.config.num_layers
    assert sorted(creditors.posted) == sorted([*range(1, 3 * layers + 1)] * 8), "two ends, two creditors, two parts"


def test_two_on_one_gpu_take_turns_and_so_exchange_frames(
    engine: Engine, creditors: Creditors, lent: Lent, path: Path
) -> None:
    creditors.members.clear()
    engine.model.device.unit = "GPU-1"
    for name in ("x", "y"):
        creditors.add(name)
    (result,) = run(creditors.runner(), decode(lent))
    assert (result.status, result.token, creditors.posted) == ("ok", lent.expected(path), [])
    engine.model.device.unit = "GPU-2"
    (result,) = run(creditors.runner(), decode(lent))
    assert (result.status, result.token) == ("ok", lent.expected(path)) and creditors.posted


def test_many_sequences_beside_one_that_lies_here(engine: Engine, creditors: Creditors, lent: Lent) -> None:
    others = [Lent(engine, name, seed, gaps=lent.gaps) for name, seed in (("a", 6), ("b", 7))]
    table, ids = engine.table(20), lent.ids[:20]
    engine.chunked_logits(ids[:19], [19], table)
    for one in others:
        engine.run(one.step(48, 49))
    seqs = decode(lent), seq_step(ids, 19, 20, table, name="own", sample=decode(lent).sample), *map(decode, others)
    expected = engine.run(*seqs)
    assert not creditors.posted
    assert run(creditors.runner(), *seqs) == expected
    assert creditors.posted
