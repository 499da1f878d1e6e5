"""A drain hands back what does not run, finishes what does, and is told when it must look again."""

from __future__ import annotations

from distkv.control import commands as c
from distkv.control.request.sequence import SeqState
from distkv.control.rmanager.drain import PATIENCE_S
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from tests.control.rmanager.test_state_machine import CLIENT, UNKNOWN, Running, only


def ends(bodies: list[object]) -> list[tuple[str, bool]]:
    return [(body.request_id, body.retryable) for body in bodies if isinstance(body, tc.RequestEnded)]


def preempt(running: Running) -> None:
    """Its request is to wait for memory, for long."""
    sequences = running.rm.state.sequences
    running.rm._parts.holdings.restart(sequences["r"], running.now)
    sequences.wait(sequences["r"], retry_at=running.now + 1000.0)


def test_what_waits_without_a_token_is_handed_back_at_once_whatever_it_holds() -> None:
    """Also one that is borrowing, and one that has lost a span before its first token."""
    running = Running()
    running.submit("runs")
    running.submit("borrows", num_tokens=40)
    running.submit("waits", num_tokens=40)
    states = {name: seq.state for name, seq in running.rm.state.sequences.items()}
    assert states == {"runs": SeqState.RUNNING, "borrows": SeqState.ACQUIRING, "waits": SeqState.WAITING}
    bodies = running.handle(c.DrainRequested(60.0))
    assert sorted(ends(bodies)) == [("borrows", True), ("waits", True)]
    assert all(body.is_draining for body in bodies if isinstance(body, tc.RequestEnded))
    assert list(running.rm.state.sequences) == ["runs"]


def test_one_that_is_preempted_before_its_first_token_is_handed_back_then() -> None:
    running = Running()
    running.submit("r")
    running.handle(c.DrainRequested(60.0))
    preempt(running)
    assert ends(running.handle(c.Tick())) == [("r", True)]


def test_one_in_mid_output_is_waited_for_a_while() -> None:
    """And the time begins again when it runs meanwhile."""
    running = Running()
    first, _ = [body for body in running.submit("r", max_tokens=8) if isinstance(body, tw.Step)]
    running.result(first, 5)
    running.handle(c.DrainRequested(60.0))
    state = running.rm.state
    preempt(running)
    assert ends(running.handle(c.Tick())) == []
    assert running.rm.next_deadline() <= running.now + PATIENCE_S
    assert ends(running.handle(c.Tick(), after_s=PATIENCE_S - 0.1)) == []
    state.sequences.wait(state.sequences["r"], retry_at=running.now)
    running.handle(c.Tick())
    assert state.sequences["r"].state is SeqState.RUNNING
    running.handle(c.ClientRequested(CLIENT, tr.KeepAlive()))
    preempt(running)
    assert ends(running.handle(c.Tick(), after_s=0.2)) == []
    ended = only(running.handle(c.Tick(), after_s=PATIENCE_S), tc.RequestEnded)
    assert ended.retryable
    assert ended.reason == "instance me is draining, and found no memory for 5 s after 1 of 8 tokens"


def test_one_that_nobody_has_memory_for_is_not_waited_for() -> None:
    """As soon as all peers are known to drain too."""
    running = Running()
    first, _ = [body for body in running.submit("r", max_tokens=8) if isinstance(body, tw.Step)]
    running.result(first, 5)
    running.handle(c.DrainRequested(60.0))
    running.rm.state.sequences["r"].request.tokens.extend([5] * 30)
    preempt(running)
    drains = tr.Reclaim(span=UNKNOWN, deadline_s=9.0, is_draining=True)
    assert ends(running.handle(c.PeerAnswered("p", drains))) == [], "the other could lend"
    ended = only(running.handle(c.PeerAnswered("q", drains)), tc.RequestEnded)
    assert ended.retryable
    assert ended.reason.startswith("instance me is draining, and nobody is left to lend it memory after ")
