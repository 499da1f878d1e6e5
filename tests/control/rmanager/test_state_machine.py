"""RManager: one event in, commands out; what comes by each channel, and by no other."""

from __future__ import annotations

import typing
from array import array
from random import Random

import pytest

from distkv.checksums import pack
from distkv.control import commands as c
from distkv.control.blocks import SlotState
from distkv.control.request.answer.output import NoText
from distkv.control.request.request import MOST_WAITED_S
from distkv.control.rmanager.clients import CLIENT_TIMEOUT_S, LAST_S
from distkv.control.rmanager.drain import RECLAIM_AFTER_S, REMIND_S
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.types import SamplingParams
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.envelope import ClientRequest, GManagerAnswer, PeerAnswer, PeerRequest
from tests.control.parts import BLOCK, make_member
from tests.token_ids import prompt_fields

CLIENT, PEER, STRANGER = b"client", b"peer", b"stranger"


class Running:
    """An rManager with two peers, at time 10."""

    def __init__(self, num_blocks: int = 8, peers: str = "pq", **settings: object) -> None:
        common = {"instance_id": "me", "incarnation": 7, "block_tokens": BLOCK, "vocab_size": 1000}
        self.now = 10.0
        self.rm = RManager(RManagerSettings(num_blocks=num_blocks, **common | settings), NoText, Random(1))
        self.rm.introduce(make_member("me", 7), "model")
        self.handle(c.FromGManager(tr.Members(version=1, members=tuple(map(make_member, peers)))))
        for name in peers:
            self.handle(c.FromWorker(fw.Linked(instance_id=name, incarnation=1)))

    def handle(self, event: c.Event, after_s: float = 0.0) -> list[object]:
        """Bodies of the commands that follow."""
        self.now += after_s
        commands = self.rm.handle(event, self.now)
        self.rm.validate()
        return [getattr(command, "body", command) for command in commands]

    def submit(self, name: str = "r", num_tokens: int = 6, max_tokens: int = 4, waited_s: float = 0.0) -> list[object]:
        prompt = tuple(range(num_tokens))
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        submit = tr.Submit(request_id=name, params=params, waited_s=waited_s, **prompt_fields(prompt))
        return self.handle(c.Tokenized(submit, array("i", prompt), CLIENT))

    def result(self, step: tw.Step, token: int) -> list[object]:
        results = tuple(
            fw.SeqResult(
                request_id=seq.request_id, attempt=seq.attempt, status="ok", token=None if seq.sample is None else token
            )
            for seq in step.seqs
        )
        return self.handle(c.FromWorker(fw.StepResult(step_id=step.step_id, results=results)))

    def borrow(self) -> tr.TryMoveKvcache:
        """A request too large for the own pool: p is asked for the rest."""
        (query,) = [body for body in self.submit(num_tokens=40) if isinstance(body, tg.BorrowQuery)]
        creditors = tr.Creditors(borrow_id=query.borrow_id, candidates=(tr.Candidate("p", 8),))
        (ask,) = [b for b in self.handle(c.FromGManager(creditors)) if isinstance(b, tr.TryMoveKvcache)]
        return ask


M = typing.TypeVar("M")


def only(bodies: list[object], kind: type[M]) -> M:
    found = [body for body in bodies if isinstance(body, kind)]
    assert len(found) == 1, bodies
    return found[0]


def test_a_request_from_its_prompt_to_its_last_token() -> None:
    running = Running()
    bodies = running.submit(max_tokens=2)
    first, second = (body for body in bodies if isinstance(body, tw.Step))
    assert (first.seqs[0].start, first.seqs[0].end, second.seqs[0].end) == (0, 6, 7)
    assert only(running.result(first, 41), tc.TokenChunk).token_ids == (41,)
    bodies = running.result(second, 42)
    assert only(bodies, tc.TokenChunk).finish_reason == "length" and only(bodies, tw.Forget).request_ids == ("r",)
    assert running.rm.state.pool.num_free == 8


@pytest.mark.parametrize(
    ("here_s", "waited_s", "first"),
    [(5.0, 0.0, "here"), (5.0, 4.0, "here"), (5.0, 6.0, "elsewhere"), (MOST_WAITED_S + 1.0, 1e9, "here")],
)
def test_who_has_waited_elsewhere_stands_where_that_brings_it(here_s: float, waited_s: float, first: str) -> None:
    """One has waited for so long when another one comes, and there is memory for one of them. What a client says
    counts up to a limit."""
    running = Running(peers="")
    steps = [body for body in running.submit("runs", 24, 1) if isinstance(body, tw.Step)]
    running.submit("here", 24, 1)
    running.now += here_s
    running.submit("elsewhere", 24, 1, waited_s)
    bodies = running.result(steps[0], 41)
    assert [seq.request_id for seq in only(bodies, tw.Step).seqs] == [first]


def test_each_channel_has_its_own_messages_and_every_one_of_them_is_handled() -> None:
    """Types, so that no decoder can let in what the state machine does not expect."""
    hints = {event: typing.get_type_hints(event)["message"] for event in (
        c.FromWorker, c.FromGManager, c.PeerAnswered, c.PeerRequested, c.ClientRequested
    )}  # fmt: skip
    kinds = {event: set(typing.get_args(union)) for event, union in hints.items()}
    assert kinds[c.PeerAnswered] == set(typing.get_args(PeerAnswer))
    assert kinds[c.PeerRequested] == set(typing.get_args(PeerRequest))
    assert kinds[c.FromGManager] == set(typing.get_args(GManagerAnswer)) - {tr.JoinRefused}
    assert kinds[c.ClientRequested] == set(typing.get_args(ClientRequest)) - {tr.Submit, tr.StatusQuery}
    seen = [kind for union in kinds.values() for kind in union]
    assert len(seen) == len(set(seen)), "no message may come by two channels"


def test_answers_of_another_peer_are_nobodys() -> None:
    running = Running()
    ask = running.borrow()
    epoch = Epoch(1, 1)
    granted = tr.Granted(span_id=ask.span_id, epoch=epoch, slots=tuple(range(ask.num_blocks)), ttl_s=4.0)
    given_back = only(running.handle(c.PeerAnswered("q", granted)), tr.Release)
    assert given_back.span == SpanRef(span_id=ask.span_id, epoch=epoch), "q's span goes back to q"
    running.handle(c.PeerAnswered("q", tr.Refused(span_id=ask.span_id, reason="", free_blocks=0)))
    assert running.rm.state.all_debts() == []
    bodies = running.handle(c.PeerAnswered("p", granted))
    assert any(isinstance(body, tw.Step) for body in bodies), "it has its memory and runs"
    assert [debt.creditor_id for debt in running.rm.state.all_debts()] == ["p"]

    (debt,) = running.rm.state.all_debts()
    valid_until = debt.valid_until
    renew = only(running.handle(c.Tick(), after_s=1.5), tr.Renew)
    running.handle(c.PeerAnswered("q", tr.Renewed(renewal=renew.renewal, refused=(debt.span,))))
    running.handle(c.PeerAnswered("q", tr.Released(span=debt.span)))
    running.handle(c.PeerAnswered("q", tr.Complete(span=debt.span, index=0, num_blocks=1)))
    assert running.rm.state.all_debts() == [debt] and (debt.filled, debt.valid_until) == (0, valid_until)
    running.handle(c.PeerAnswered("p", tr.Renewed(renewal=renew.renewal)))
    assert debt.valid_until > valid_until


def test_a_reclaim_of_somebody_else_is_not_the_creditors() -> None:
    running = Running()
    ask = running.borrow()
    granted = tr.Granted(span_id=ask.span_id, epoch=Epoch(1, 1), slots=tuple(range(ask.num_blocks)), ttl_s=4.0)
    running.handle(c.PeerAnswered("p", granted))
    (debt,) = running.rm.state.all_debts()
    capacity = debt.capacity
    reclaim = tr.Reclaim(span=debt.span, deadline_s=1.0)
    running.handle(c.PeerAnswered("q", reclaim))
    assert debt.capacity == capacity and len(debt.blocks) == capacity


UNKNOWN = SpanRef(span_id="unknown", epoch=Epoch(7, 1))


@pytest.mark.parametrize(
    "event",
    [
        c.FromWorker(fw.StepResult(step_id=77, results=())),
        c.FromWorker(fw.StepResult(step_id=2, results=())),
        c.FromWorker(fw.Checksummed(checksum_id=1, checksums=pack((1, 2)))),
        c.FromWorker(fw.Pulled(pull_id=1)),
        c.FromWorker(fw.Revoked(span=UNKNOWN)),
        c.FromWorker(fw.Linked(instance_id="nobody", incarnation=1, problem="no")),
        c.FromWorker(fw.Linked(instance_id="p", incarnation=9)),
        c.FromGManager(tr.Creditors(borrow_id="unknown", candidates=(tr.Candidate("p", 9),))),
        c.FromGManager(tr.HeartbeatAck(seq=2**40)),
        c.PeerAnswered("p", tr.Granted(span_id="unknown", epoch=Epoch(1, 1), slots=(0, 1), ttl_s=9.0)),
        c.PeerAnswered("p", tr.Refused(span_id="unknown", reason="", free_blocks=0)),
        c.PeerAnswered("p", tr.Complete(span=UNKNOWN, index=0, num_blocks=1)),
        c.PeerAnswered("p", tr.Renewed(renewal=3, refused=(UNKNOWN,))),
        c.PeerAnswered("p", tr.Released(span=UNKNOWN)),
        c.PeerAnswered("nobody", tr.Released(span=UNKNOWN)),
        c.PeerRequested("p", STRANGER, tr.Release(span=UNKNOWN)),
        c.PeerRequested("p", STRANGER, tr.Renew(renewal=1, spans=(UNKNOWN,), ttl_s=4.0)),
        c.PeerAnswered("p", tr.Reclaim(span=UNKNOWN, deadline_s=0.0)),
        c.PeerRequested(
            "p", STRANGER, tr.BlocksReady(span=UNKNOWN, index=0, source_id="p", source_incarnation=1, blocks=())
        ),
        c.ClientRequested(STRANGER, tr.Cancel(request_id="r")),
        c.ClientRequested(STRANGER, tr.KeepAlive()),
        c.ClientRequested(STRANGER, tg.MembersQuery()),
        c.ClientRequested(STRANGER, tg.Locate(request_id="r")),
        c.ClientGone(STRANGER),
        c.PeerDisconnected("nobody"),
    ],
    ids=lambda event: type(getattr(event, "message", event)).__name__,
)
def test_well_formed_and_of_nobody(event: c.Event) -> None:
    """In the midst of work: no exception, no slot changes hands, the request goes on as if nothing had been."""
    running = Running()
    bodies = running.submit()
    steps = [body for body in bodies if isinstance(body, tw.Step)]
    pool = running.rm.state.pool
    before = [pool.count(kind) for kind in SlotState]
    bodies = running.handle(event)
    assert [pool.count(kind) for kind in SlotState] == before
    assert not any(isinstance(body, tw.Step | tw.Grant | tw.Revoke | tw.Pull | tc.TokenChunk) for body in bodies)
    assert only(running.result(steps[0], 9), tc.TokenChunk).token_ids == (9,)


def test_a_list_of_members_that_a_stranger_would_like_is_no_event_of_the_public_port() -> None:
    port = set(typing.get_args(PeerRequest)) | set(typing.get_args(ClientRequest))
    assert not port & {tr.Members, tr.HeartbeatAck, tr.Creditors, fw.StepResult, fw.Pulled, fw.Revoked, tr.Granted}


def test_a_peer_is_heard_by_its_answers_only() -> None:
    """Anybody can claim to be p at our port; on our own connection to p it is p."""
    running = Running()
    running.handle(c.PeerDisconnected("p"))
    running.handle(c.PeerRequested("p", STRANGER, tr.Renew(renewal=1, spans=(), ttl_s=0.0)))
    assert "p" in running.rm.state.suspects
    running.handle(c.PeerAnswered("p", tr.Renewed(renewal=1)))
    assert "p" not in running.rm.state.suspects


def test_a_client_that_is_silent_or_gone_loses_its_requests() -> None:
    running = Running()
    running.submit("a")
    running.handle(c.ClientRequested(CLIENT, tr.KeepAlive()), after_s=CLIENT_TIMEOUT_S * 0.7)
    assert running.handle(c.Tick(), after_s=CLIENT_TIMEOUT_S * 0.7) and "a" in running.rm.state.sequences
    assert running.handle(c.Tick(), after_s=CLIENT_TIMEOUT_S * 0.4) and "a" in running.rm.state.sequences
    behind = running.handle(c.Tick(is_behind=True), after_s=LAST_S)
    assert behind and "a" in running.rm.state.sequences, "what it said may lie unread"
    ended = only(running.handle(c.Tick(), after_s=LAST_S), tc.RequestEnded)
    assert (ended.request_id, ended.kind) == ("a", "failed") and "nothing was heard of its client" in ended.reason
    assert ended.go_to == running.rm.state.settings.instance_id, "one that was only stopped comes here again"
    running.submit("b")
    running.handle(c.ClientGone(CLIENT))
    assert not running.rm.state.sequences


def test_a_drain_ends_when_all_is_done_and_given_back() -> None:
    running = Running()
    ask = tr.TryMoveKvcache(span_id="s", request_id="x", debtor_id="p", debtor_incarnation=1, num_blocks=2, ttl_s=4.0)
    loan = only(running.handle(c.PeerRequested("p", PEER, ask)), tw.Grant)
    assert not [body for body in running.handle(c.DrainRequested(9.0)) if isinstance(body, tr.Reclaim)]
    late = tr.TryMoveKvcache(span_id="t", request_id="y", debtor_id="p", debtor_incarnation=1, num_blocks=2, ttl_s=4.0)
    assert only(running.handle(c.PeerRequested("p", PEER, late)), tr.Refused).is_draining
    assert running.rm.next_deadline() <= running.now + RECLAIM_AFTER_S
    reclaim = only(running.handle(c.Tick(), after_s=RECLAIM_AFTER_S), tr.Reclaim)
    assert (reclaim.span, reclaim.deadline_s, reclaim.is_draining) == (loan.span, 9.0 - RECLAIM_AFTER_S, True)
    assert only(running.handle(c.Tick(), after_s=REMIND_S), tr.Reclaim).span == loan.span, "it may have been lost"
    assert only(running.submit("late"), tc.RequestEnded).retryable
    running.handle(c.PeerRequested("p", PEER, tr.Release(span=loan.span)))
    bodies = running.handle(c.FromWorker(fw.Revoked(span=loan.span)))
    assert only(bodies, tr.Released).span == loan.span
    assert only(bodies, tg.Leave).instance_id == "me" and only(bodies, c.Exit) == c.Exit(0, "drained")
    assert not [body for body in running.handle(c.Tick(), after_s=9.0) if isinstance(body, c.Exit)], "once"


@pytest.mark.parametrize("drains", [True, False])
def test_who_says_that_it_drains_is_not_asked_again(drains: bool) -> None:
    running = Running()
    ask = running.borrow()
    refused = tr.Refused(span_id=ask.span_id, reason="", free_blocks=0, is_draining=drains)
    running.handle(c.PeerAnswered("p", refused))
    assert running.rm.members["p"].state == ("draining" if drains else "ready")
    assert running.rm.state.members.may_lend("p") != drains


def test_a_drain_ends_at_its_deadline() -> None:
    running = Running()
    running.submit()
    running.handle(c.DrainRequested(2.0))
    bodies = running.handle(c.Tick(), after_s=2.0)
    assert "stopped while draining" in only(bodies, tc.RequestEnded).reason
    assert only(bodies, c.Exit).code == 0


@pytest.mark.parametrize("how", ["order", "future"])
def test_what_is_deferred_waits_in_the_order_of_steps(how: str) -> None:
    running = Running()
    running.submit()
    state = running.rm.state
    state.deferred.add(None, [])
    state.deferred.add(None, [])
    first, second = state.deferred._items
    if how == "order":
        second.step_id = first.step_id - 1
    else:
        second.step_id = state.scheduler.last_step_id + 1
    with pytest.raises(AssertionError, match="deferred to steps"):
        running.rm.validate()


def test_a_slot_with_two_owners_or_none_is_found() -> None:
    running = Running()
    running.submit()
    (slot,) = running.rm.state.pool.allocate(1, SlotState.LOCAL) or ()
    with pytest.raises(AssertionError, match="local slots"):
        running.rm.validate()
    running.rm.state.sequences["r"].placement.add_slots([slot])
    running.rm.validate()
    running.rm.state.deferred.add(None, [slot])
    with pytest.raises(AssertionError, match="two owners"):
        running.rm.validate()
