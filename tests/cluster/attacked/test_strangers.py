"""Bytes that are no message of the protocol reach the ports of a live instance: refused, counted, nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
import zmq

from distkv import AsyncClient
from distkv.wire.codec import encode_envelope
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.to_rmanager import BlocksReady, Release, Renew, TryMoveKvcache
from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, eventually


@pytest.fixture
def dealer() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = 30_000
        yield dealer


async def malformed(driver: Driver, instance_id: str) -> int:
    return (await driver.statuses())[instance_id].instance.counters.malformed_messages


async def still_serves(driver: Driver, expect) -> None:
    prompt = prompt_ids(1300, seed=9)
    expect(prompt, await driver.generate(prompt, 8), 8)
    await driver.settled()


@pytest.mark.parametrize(
    "bytes_",
    [b"", b"\x00" * 100, os.urandom(5000), b"\x80" * 10_000, b'{"type": "Submit"}', b"cos\nsystem\n(S'ls'\ntR."],
)
async def test_nonsense_on_the_control_port(three, expect, dealer, bytes_):
    async with driving(three) as driver:
        before = await malformed(driver, "i1")
        dealer.connect(driver.instance("i1").address)
        dealer.send(bytes_)
        assert b"Rejected" in dealer.recv()

        async def counted() -> bool:
            return await malformed(driver, "i1") == before + 1

        await eventually(counted, 30, "it is counted")
        prompt = prompt_ids(40, seed=9)
        expect(prompt, await driver.generate(prompt, 4, at="i1"), 4)


async def test_nonsense_on_the_gmanagers_port(three, expect, dealer):
    async with driving(three) as driver:
        dealer.connect(three.address)
        dealer.send(os.urandom(1000))
        assert b"Rejected" in dealer.recv()
        await still_serves(driver, expect)


async def test_raw_bytes_on_the_control_port(three, expect):
    async with driving(three) as driver:
        host, port = driver.instance("i1").address.removeprefix("tcp://").split(":")
        for payload in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\xff" * 64):
            with socket.create_connection((host, int(port)), timeout=30) as stranger:
                stranger.sendall(payload)
        await still_serves(driver, expect)


async def test_messages_that_make_no_sense_to_this_instance(three, expect, dealer):
    """Well-formed, but of nobody it lends to or owes."""
    span = SpanRef(span_id="nobody's", epoch=Epoch(1, 2))
    bodies = [
        Renew(renewal=1, spans=(span,), ttl_s=4.0),
        Release(span=span),
        BlocksReady(span=span, index=0, source_id="i0", source_incarnation=1, blocks=()),
        TryMoveKvcache(span_id="x", request_id="r", debtor_id="i2", debtor_incarnation=1, num_blocks=2**40, ttl_s=1e6),
    ]
    async with driving(three) as driver:
        dealer.connect(driver.instance("i1").address)
        for number, body in enumerate(bodies):
            dealer.send(encode_envelope(Envelope(id=f"stranger-{number}", sender="stranger", body=body)))
            assert dealer.recv()
        await still_serves(driver, expect)


async def test_nonsense_on_the_data_port(three, expect):
    async with driving(three) as driver:
        async with AsyncClient(three.address) as client:
            member = next(m for m in await client.members() if m.instance_id == "i1")
        assert member.data is not None
        host, port = member.data.address.rsplit(":", 1)
        before = await malformed(driver, "i1")
        payloads = (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\xff" * 4096)
        for payload in payloads:
            with socket.create_connection((host, int(port)), timeout=30) as stranger:
                stranger.sendall(payload)
                stranger.settimeout(30)
                try:
                    while stranger.recv(4096):
                        pass  # a reason, then the end
                except ConnectionResetError:
                    pass

        async def counted() -> bool:
            return await malformed(driver, "i1") >= before + len(payloads)

        await eventually(counted, 30, "all are counted")
        await still_serves(driver, expect)
