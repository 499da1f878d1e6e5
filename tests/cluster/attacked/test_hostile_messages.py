"""A stranger who knows every id of a busy cluster sends it every message of the protocol, in its own and in others'
names: nothing ends, no slot changes hands, running requests get their tokens, each message is counted or answered."""

from __future__ import annotations

import asyncio
import http.client
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec
import pytest
import zmq

from distkv.wire.codec import EnvelopeDecoder, encode_envelope, encode_header
from distkv.wire.inboxes import CAPTURE
from distkv.wire.links.streams.frames import MAGIC
from distkv.wire.messages.common import Member, Message
from distkv.wire.messages.envelope import Envelope, ToGManager, ToRManager
from distkv.wire.messages.to_client import Rejected
from tests.checkpoints import prompt_ids
from tests.cluster.attacked.forged_messages import Known, message_types
from tests.cluster.driving import Driver, Running, driving, eventually

CONTROL, OF_LINKS = message_types()
PROMPT_TOKENS, MAX_TOKENS = 700, 700
ANSWERS_S = 30.0
# What an inbox takes and does not answer: they change nothing, or are refused as claims and noted in the log.
UNANSWERED = {"KeepAlive", "Cancel", "Leave", "Heartbeat", "Join", "RedispatchQuery", "Frozen", "Swapped"}


@dataclass
class Attack:
    """All messages to one port, each type from a connection of its own.

    answers: what came, by (type, identity).
    """

    address: str
    known: Known
    context: zmq.Context[zmq.Socket[bytes]]
    sockets: dict[tuple[str, str], zmq.Socket[bytes]] = field(default_factory=dict)
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def send_all(self) -> None:
        """As a stranger, in the names of the debtor and the creditor (also as ZeroMQ knows them), as the worker."""
        debtor, creditor = self.known.debtor.instance_id, self.known.creditor.instance_id
        forged = {kind: self.known.forged_once(kind) for kind in CONTROL}
        for sender, routing_id in (("stranger", None), (debtor, debtor), (creditor, creditor), ("worker", "gmanager")):
            for kind in CONTROL:
                dealer = self.sockets[kind.__name__, sender] = self.context.socket(zmq.DEALER)
                dealer.linger = 0
                if routing_id is not None:
                    dealer.set(zmq.IDENTITY, f"{routing_id}/{kind.__name__}".encode())
                dealer.connect(self.address)
                for number, body in enumerate(forged[kind]):
                    envelope = Envelope(id=f"forged-{number}", sender=sender, body=body)
                    dealer.send(encode_envelope(envelope))  # type: ignore[arg-type]
                    self.sent[kind.__name__, sender] += 1

    def take_answers(self, inbox: Any) -> None:
        """Read what comes until every connection that must be answered is, and each message is that must be refused."""
        poller = zmq.Poller()
        taken = names(inbox)
        must_come = {key: sent for key, sent in self.sent.items() if key[0] not in taken & UNANSWERED}
        missing = Counter({key: 1 if key[0] in taken else sent for key, sent in must_come.items()})
        for dealer in self.sockets.values():
            poller.register(dealer, zmq.POLLIN)
        keys = {dealer: key for key, dealer in self.sockets.items()}
        while ready := poller.poll(ANSWERS_S * 1000 if missing else 100):
            for dealer, _event in ready:
                answer = CAPTURE.decode(dealer.recv()).body
                self.answers.setdefault(keys[dealer], []).append(answer)
                missing -= Counter((keys[dealer],))
        assert not missing, f"{self.address} neither answered nor refused {missing}"

    def close(self) -> None:
        for dealer in self.sockets.values():
            dealer.close(0)


def names(union: Any) -> set[str]:
    return {kind.__name__ for kind in get_args(union)}


async def member(driver: Driver, instance_id: str) -> Member:
    return next(m for m in await (await driver.client()).members() if m.instance_id == instance_id)


async def running_on_two(driver: Driver, traces: list[Path]) -> tuple[Running, Known]:
    """A request whose debtor is i0, with rBlocks at another instance, in the middle of its decoding."""
    run = await driver.start(prompt_ids(PROMPT_TOKENS, seed=9), MAX_TOKENS, at="i0")
    async with driver.frozen_at(run, 3, "i0"):
        for status in (await driver.statuses()).values():
            names_ = [r.request_id for r in status.requests if r.request_id.partition("~")[0] == run.request_id]
            if names_:
                (request_id,) = names_
        creditor = await driver.creditor(run)
    return run, Known.of(request_id, await member(driver, "i0"), await member(driver, creditor), traces)


async def remote(driver: Driver, run: Running) -> dict[str, int]:
    return {name: tokens for name, tokens in (await driver.spans(run)).items() if name != "i0"}


async def stays_lent(driver: Driver, run: Running, lent: dict[str, int]) -> None:
    """While the request runs it may borrow more; what it has borrowed stays where it is."""
    now = await driver.spans(run)
    if now:  # else it has ended
        assert all(now.get(name, 0) >= tokens for name, tokens in lent.items()), f"{lent} became {now}"


async def counters(driver: Driver, name: str) -> dict[str, int]:
    return {i: getattr(status.instance.counters, name) for i, status in (await driver.statuses()).items()}


async def lost(driver: Driver) -> dict[str, dict[str, int]]:
    """What counts what was lost."""
    return {name: await counters(driver, name) for name in ("recomputed_tokens", "preemptions", "checksum_refusals")}


async def nothing_was_lost(driver: Driver, pids: dict[str, int], before: dict[str, dict[str, int]]) -> None:
    statuses = await driver.statuses()
    assert {i: status.instance.pid for i, status in statuses.items()} == pids
    assert {status.instance.state for status in statuses.values()} == {"ready"}
    assert await lost(driver) == before
    members = await (await driver.client()).members()
    assert {m.instance_id: (m.state, m.pid) for m in members} == {i: ("ready", pid) for i, pid in pids.items()}


@pytest.mark.parametrize("target", [pytest.param("gmanager", marks=pytest.mark.slow), "debtor", "creditor"])
async def test_every_message_to_a_public_port_of_a_busy_cluster(three, expect, traces, target):
    inbox = ToGManager if target == "gmanager" else ToRManager
    async with driving(three) as driver:
        pids = {i: status.instance.pid for i, status in (await driver.statuses()).items()}
        lost_before = await lost(driver)
        run, known = await running_on_two(driver, traces)
        victim = {"debtor": known.debtor.instance_id, "creditor": known.creditor.instance_id}.get(target)
        address = three.address if victim is None else driver.instance(victim).address
        before = await counters(driver, "malformed_messages")
        lent = await eventually(lambda: remote(driver, run), 30, "something is lent")
        with zmq.Context() as context:
            attack = Attack(address, known, context)
            try:
                await asyncio.to_thread(attack.send_all)
                sent_after = len(run.tokens)
                await stays_lent(driver, run, lent)
                await asyncio.to_thread(attack.take_answers, inbox)
            finally:
                attack.close()
        assert sent_after < MAX_TOKENS, "it ended before all was sent"
        expect(run.prompt, await run.finished(), MAX_TOKENS)

        refused = {key for key, answers in attack.answers.items() if any(isinstance(a, Rejected) for a in answers)}
        foreign = {key for key in attack.sockets if key[0] not in names(inbox)}
        assert refused == foreign, "exactly what may not come by this port is refused"
        for key in foreign:
            for answer in attack.answers[key]:
                assert f"Invalid value '{key[0]}' - at `$.body.type`" in answer.reason and not answer.closed
        if victim is not None:
            after = await counters(driver, "malformed_messages")
            refusals = sum(len(attack.answers[key]) for key in foreign)
            assert after[victim] - before[victim] == refusals, "each refusal is counted"
        await nothing_was_lost(driver, pids, lost_before)
        prompt = prompt_ids(1200, seed=3)
        expect(prompt, await driver.generate(prompt, 8, at="i1"), 8)
        await driver.settled()


async def test_every_message_to_the_tensor_port_and_the_gateway_of_a_busy_cluster(three, expect, traces):
    async with driving(three) as driver:
        pids = {i: status.instance.pid for i, status in (await driver.statuses()).items()}
        lost_before = await lost(driver)
        run, known = await running_on_two(driver, traces)
        creditor = known.creditor.instance_id
        before, lent = await counters(driver, "malformed_messages"), await remote(driver, run)
        assert known.creditor.data is not None
        headers = [encode_header(body) for kind in OF_LINKS for body in known.forged_once(kind)]  # type: ignore[arg-type]
        await asyncio.to_thread(begin_links, known.creditor.data.address, headers)
        await stays_lent(driver, run, lent)
        bodies = [known.forged_once(kind)[0] for kind in CONTROL]
        statuses = await asyncio.to_thread(post_all, three.http_url, bodies)
        # The fields of a Submit happen to make a completion; all others are refused.
        assert all(status < 500 for status in statuses) and statuses.count(200) <= 1, statuses
        expect(run.prompt, await run.finished(), MAX_TOKENS)

        async def counted() -> bool:
            hellos = len(known.forged_once(next(kind for kind in OF_LINKS if kind.__name__ == "Hello")))
            malformed = (await counters(driver, "malformed_messages"))[creditor] - before[creditor]
            return malformed >= len(headers) - hellos

        await eventually(counted, 30, "all but Hello, which is answered, are counted")
        await nothing_was_lost(driver, pids, lost_before)
        assert three.gateway is not None and three.gateway.alive
        await driver.settled()


def begin_links(address: str, headers: list[bytes]) -> None:
    """Begin a tensor link with each of the headers; none may be welcome."""
    host, port = address.rsplit(":", 1)
    for header in headers:
        with socket.create_connection((host, int(port)), timeout=ANSWERS_S) as stranger:
            stranger.sendall(struct.pack("<IIQ", MAGIC, len(header), 0) + header)
            answered = b""
            try:
                while some := stranger.recv(4096):
                    answered += some
            except ConnectionResetError:
                pass
            assert b"Welcome" not in answered


def post_all(url: str, bodies: list[Message]) -> list[int]:
    """The statuses that HTTP gives to them as JSON and as MessagePack."""
    where = urlsplit(url)
    statuses = []
    for body in bodies:
        for encoded in (msgspec.json.encode(body), msgspec.msgpack.encode(body)):
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=ANSWERS_S)
            connection.request("POST", "/v1/completions", encoded, {"Content-Type": "application/json"})
            statuses.append(connection.getresponse().status)
            connection.close()
    return statuses


def test_a_new_message_is_forged_too():
    """The types come from the modules, not from a list, and the unions hold nothing else."""
    decoded = {kind.__name__ for kind in CONTROL}
    assert {"StepResult", "Pulled", "Revoked", "Members", "Submit", "Join"} <= decoded
    assert {kind.__name__ for kind in OF_LINKS} >= {"Hello", "Attend", "ReadBlocks"}
    everything: EnvelopeDecoder[Any] = CAPTURE
    known = Known(
        "r", Member(instance_id="a", incarnation=1, address="x"), Member(instance_id="b", incarnation=2, address="y"),
        {"span_id": ["s-1", "s-2"], "step_id": [7]},
    )  # fmt: skip
    for kind in CONTROL:
        for body in known.forged_once(kind):
            encoded = encode_envelope(Envelope(id="x", sender="x", body=body))  # type: ignore[arg-type]
            assert everything.decode(encoded).body == body
    (result, *_) = known.forged_once(next(kind for kind in CONTROL if kind.__name__ == "StepResult"))
    assert result.step_id == 7 and result.results[0].request_id == "r"  # type: ignore[attr-defined]
