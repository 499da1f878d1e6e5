"""Steps whose queries and partials pass a mailbox: two devices, real links, no host in the path of a layer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from distkv.actors.worker.links.mailboxes import Mailboxes
from distkv.engine.attention.bodies import body_of
from distkv.engine.step.runner import StepRunner
from distkv.errors import LinkClosed
from distkv.wire.links import TensorLink
from distkv.wire.links.memory.mailbox_memory import MAX_MAILBOX_BYTES, make_mailbox
from distkv.wire.messages.data import Attach, Attached, Attend, AttendEntry, AttendPlan, PlanServed
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import SeqStep, Step
from tests.actors.links import DEADLINE_S
from tests.actors.worker.mailbox_creditors import Creditors
from tests.checkpoints import prompt_ids, reference_greedy, variant
from tests.engine.async_device import AsyncHost
from tests.engine.borrower import Borrower, tokens_of
from tests.engine.harness import Engine, seq_step
from tests.engine.lent import Lent
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "qwen3")


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, device=AsyncHost(), num_slots=128)


@pytest.fixture
def creditors(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Creditors]:
    creditors = Creditors(engine, monkeypatch)
    yield creditors
    creditors.close()


def run(runner: StepRunner, *seqs: SeqStep, step_id: int = 1) -> tuple[SeqResult, ...]:
    return runner.run(Step(step_id=step_id, seqs=seqs))


def decode(lent: Lent, **fields: Any) -> SeqStep:
    return lent.step(49, 50, **fields)


@pytest.fixture(params=[True, False], ids=["called", "captured"])
def lent(request: pytest.FixtureRequest, engine: Engine, creditors: Creditors) -> Lent:
    """One whose position 48 is computed, with gaps between own blocks, and without: then a step is one graph. Both
    creditors listen."""
    lent = Lent(engine, gaps=request.param)
    creditors.add("x")
    creditors.add("y")
    engine.run(lent.step(48, 49))
    return lent


def test_the_token_of_one_instance_without_a_frame_for_a_layer(
    engine: Engine, creditors: Creditors, lent: Lent, path: Path
) -> None:
    runner, layers, before = creditors.runner(), engine.model.config.num_layers, creditors.counted("x")
    for step_id in range(1, 20):
        (result,) = run(runner, decode(lent), step_id=step_id)
        assert (result.status, result.token) == ("ok", lent.expected(path)), step_id
    # Each layer of a step has a number of its own, at both ends of both mailboxes.
    assert sorted(creditors.posted) == sorted([*range(1, 19 * layers + 1)] * 4)
    assert creditors.counted("x") == creditors.counted("y") == before + 19 * layers
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
    one = Borrower(engine, "r", prompt_ids(30))
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
    seqs = [Borrower(engine, str(i), prompt_ids(12 + i, seed=i), room=8) for i in range(4)]
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


def test_a_revoked_span_is_read_until_the_plan_is_done_and_then_lost(creditors: Creditors, lent: Lent) -> None:
    registry = creditors.engine.peers.creditors["x"].registry
    revoked = threading.Event()
    at_revocation: list[bool] = []

    def revoke(name: str, layer: int) -> None:
        if (name, layer) == ("x", 1) and not at_revocation:
            registry.revoke(lent.remote[0].span, revoked.set)
            at_revocation.append(revoked.is_set())

    runner = creditors.runner()
    (before,) = run(runner, decode(lent))
    creditors.before_layer = revoke
    (result,) = run(runner, decode(lent), step_id=2)
    assert result == before and at_revocation == [False], "what a plan reads may be overwritten only afterwards"
    assert revoked.wait(DEADLINE_S)
    (result,) = run(runner, decode(lent), step_id=3)
    assert (result.status, result.lost) == ("lost", ("x",))


def test_a_stale_span_loses_its_sequence_alone(engine: Engine, creditors: Creditors, lent: Lent) -> None:
    other = Lent(engine, "other", 6, gaps=lent.gaps)
    engine.run(other.step(48, 49))
    runner = creditors.runner()
    before = run(runner, decode(lent), decode(other))
    creditors.engine.peers.creditors["y"].registry.revoke(lent.remote[2].span, lambda: None)
    lost, kept = run(runner, decode(lent), decode(other), step_id=2)
    assert (lost.status, lost.lost) == ("lost", ("y",))
    assert kept == before[1]


def test_a_creditor_that_ends_in_the_middle_is_lost_at_once_and_asked_again(creditors: Creditors, lent: Lent) -> None:
    """What waits for it on the device ends with its connection, long before its time is over."""
    ended = threading.Event()

    def end(name: str, layer: int) -> None:
        if (name, layer) == ("x", 1) and not ended.is_set():
            ended.set()
            creditors.links.update((), ("x",))

    runner = creditors.runner()
    (before,) = run(runner, decode(lent))
    creditors.before_layer = end
    begun_s = time.monotonic()
    (result,) = run(runner, decode(lent), step_id=2)
    assert (result.status, result.lost) == ("lost", ("x",))
    assert time.monotonic() - begun_s < DEADLINE_S / 2
    creditors.links.update((creditors.members["x"],))
    (again,) = run(runner, decode(lent, attempt=1), step_id=3)
    assert (again.status, again.token) == ("ok", before.token)
    wait_until(lambda: creditors.pins(lent) == 0)


def test_a_creditor_that_is_late_is_lost_and_then_asked_by_frames(creditors: Creditors, lent: Lent) -> None:
    go_on = threading.Event()
    runner = creditors.runner(timeout_s=0.3)
    run(runner, decode(lent))
    creditors.before_layer = lambda _name, layer: assert_waited(go_on) if layer == 1 else None
    begun_s = time.monotonic()
    (result,) = run(runner, decode(lent), step_id=2)
    waited_s = time.monotonic() - begun_s
    go_on.set()
    assert result.status == "lost" and waited_s < DEADLINE_S / 2
    spans = [(creditors.engine.peers.creditors[one.instance_id].registry._spans, one.span) for one in lent.remote]
    wait_until(lambda: not any(known[ref].standing for known, ref in spans))  # the creditors' plans ended too
    creditors.posted.clear()
    creditors.before_layer = lambda _name, _layer: None

    def is_answered() -> bool:
        (result,) = run(runner, decode(lent, attempt=1 + len(attempts)), step_id=3 + len(attempts))
        attempts.append(result.status)
        return result.status == "ok"

    attempts: list[str] = []
    wait_until(is_answered)
    assert not creditors.posted


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_waited(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def plan(lent: Lent, *, first_post: int = 1, num_rows: int = 1) -> AttendPlan:
    span = lent.remote[0]
    entry = AttendEntry(
        request_id="r", span=span.span, index=2, num_blocks=4, first_position=4, row=0, num_rows=num_rows
    )
    return AttendPlan(step_id=4, num_rows=num_rows, entries=(entry,), first_post=first_post)


def attached(link: TensorLink, body: bytes) -> bytes:
    link.send(Attach(transport=Mailboxes.name), body)
    header, told = link.recv(DEADLINE_S)
    assert header == Attached(transport=Mailboxes.name)
    return bytes(told)


def with_mailbox(creditors: Creditors, query_bytes: int = 4096, partial_bytes: int = 8192) -> tuple[TensorLink, Any]:
    link, memory = creditors.join("x"), make_mailbox(query_bytes, partial_bytes)
    assert attached(link, memory.place()) == b""
    memory.forget()
    return link, memory


def test_a_debtor_that_posts_nothing_keeps_no_revocation_waiting(creditors: Creditors, lent: Lent) -> None:
    link, memory = with_mailbox(creditors)
    link.send(plan(lent), body_of(torch.tensor([49])))
    registry = creditors.engine.peers.creditors["x"].registry
    wait_until(lambda: registry._spans[lent.remote[0].span].standing)
    revoked = threading.Event()
    registry.revoke(lent.remote[0].span, revoked.set)
    assert not revoked.is_set()
    assert revoked.wait(DEADLINE_S / 2)
    assert memory.is_halted
    with pytest.raises(LinkClosed):
        link.recv(DEADLINE_S)


def test_a_debtor_that_is_gone_leaves_nothing_pinned(creditors: Creditors, lent: Lent) -> None:
    link, _memory = with_mailbox(creditors)
    link.send(plan(lent), body_of(torch.tensor([49])))
    spans = creditors.engine.peers.creditors["x"].registry._spans
    wait_until(lambda: spans[lent.remote[0].span].standing)
    link.abort()
    wait_until(lambda: not spans[lent.remote[0].span].standing)


@pytest.mark.parametrize("first_post", [0, 1])
def test_plans_and_queries_that_do_not_fit_end_the_link(creditors: Creditors, lent: Lent, first_post: int) -> None:
    """A mailbox is no way around the checks, and nothing is read or written beyond its end."""
    link, _memory = with_mailbox(creditors, 128, 128)
    if first_post:
        link.send(plan(lent, num_rows=3), body_of(torch.tensor([47, 48, 49])))
    else:
        link.send(Attend(step_id=4, layer=0), b"")
    with pytest.raises(LinkClosed):
        link.recv(DEADLINE_S)


def test_a_plan_for_a_mailbox_that_is_not_there_ends_the_link(creditors: Creditors, lent: Lent) -> None:
    link = creditors.join("x")
    link.send(plan(lent), body_of(torch.tensor([49])))
    with pytest.raises(LinkClosed, match="there is none"):
        link.recv(DEADLINE_S)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"token": "another"}, "not the memory"),
        ({"fd": 10**6}, "descriptor"),
        ({"partial_bytes": 4096}, "were announced"),
        ({"query_bytes": 100}, "a mailbox of 100"),
        ({"query_bytes": MAX_MAILBOX_BYTES}, "a mailbox of"),
    ],
)
def test_a_mailbox_that_is_none_is_not_mapped(
    creditors: Creditors, lent: Lent, change: dict[str, Any], why: str
) -> None:
    memory = make_mailbox(4096, 8192)
    told = attached(creditors.join("x"), json.dumps(json.loads(memory.place()) | change).encode())
    memory.forget()
    assert why in told.decode()


def test_an_attach_that_is_nonsense_ends_the_link(creditors: Creditors, lent: Lent) -> None:
    link = creditors.join("x")
    link.send(Attach(transport=Mailboxes.name), b"nonsense")
    with pytest.raises(LinkClosed):
        link.recv(DEADLINE_S)


def test_a_peer_that_writes_into_the_mailbox_as_it_likes_harms_itself_alone(
    engine: Engine, creditors: Creditors, lent: Lent
) -> None:
    """It posts numbers that nobody waits for. Others at that creditor notice nothing, and nothing of it is left."""
    before = descriptors()
    for number in (2**62, 77):
        link, memory = with_mailbox(creditors)
        memory.view[:8] = number.to_bytes(8, "little")
        link.send(plan(lent), body_of(torch.tensor([49])))
        with pytest.raises(LinkClosed):
            link.recv(DEADLINE_S)
        link.abort()
        del memory
    wait_until(lambda: descriptors() <= before)
    (result,) = run(creditors.runner(), decode(lent))
    assert result.status == "ok"


def test_a_plan_is_answered_once_all_its_layers_are(creditors: Creditors, lent: Lent) -> None:
    link, memory = with_mailbox(creditors)
    layers = creditors.engine.model.config.num_layers
    link.send(plan(lent, first_post=10), body_of(torch.tensor([49])))
    for number in range(10, 10 + layers):
        memory.view[:8] = number.to_bytes(8, "little")
        wait_until(lambda number=number: memory.view[128:136] == number.to_bytes(8, "little"))
    assert link.recv(DEADLINE_S)[0] == PlanServed(step_id=4)
