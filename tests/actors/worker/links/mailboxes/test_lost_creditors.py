"""Creditors that are lost while a step waits for them at a mailbox: spans revoked, links ended, answers too late."""

from __future__ import annotations

import threading
import time

from tests.actors.links import DEADLINE_S
from tests.actors.worker.links.mailboxes.creditors import Creditors, decode, run
from tests.engine.harness import Engine
from tests.engine.lent import Lent
from tests.waiting import wait_until


def assert_waited(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


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
