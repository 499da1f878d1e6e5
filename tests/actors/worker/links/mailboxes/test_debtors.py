"""What a debtor may do with a mailbox that a creditor maps: no more than its checks allow, and to nobody but itself."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from distkv.actors.worker.links.mailboxes import Mailboxes
from distkv.engine.attention.bodies import body_of
from distkv.errors import LinkClosed
from distkv.wire.links import TensorLink
from distkv.wire.links.memory.mailbox_memory import MAX_MAILBOX_BYTES, make_mailbox
from distkv.wire.messages.data import Attach, Attached, Attend, AttendEntry, AttendPlan, Partials, PlanServed
from tests.actors.links import DEADLINE_S
from tests.actors.worker.links.mailboxes.creditors import Creditors, decode, run
from tests.engine.harness import Engine
from tests.engine.lent import Lent
from tests.waiting import wait_until


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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
    assert memory.view[memory.halt_at]
    with pytest.raises(LinkClosed):
        link.recv(DEADLINE_S)


def test_one_for_which_there_is_no_stream_alone_is_not_mapped(
    creditors: Creditors, lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks by frames; its plans would wait behind those of others that wait for it."""
    monkeypatch.setattr(creditors.engine.model.device, "keep_stream", lambda _stream: False)
    link, memory = creditors.join("x"), make_mailbox(4096, 8192)
    assert b"no stream left" in attached(link, memory.place())
    memory.forget()
    link.send(plan(lent, first_post=0), body_of(torch.tensor([49])))
    link.send(Attend(step_id=4, layer=0), body_of(torch.zeros(1, 4, 32)))
    header, _ = link.recv(DEADLINE_S)
    assert isinstance(header, Partials)


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
