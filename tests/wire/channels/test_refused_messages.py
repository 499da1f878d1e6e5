"""Messages that a channel does not take, or does not send: what they cost, and whom."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable
from types import SimpleNamespace
from unittest.mock import ANY

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from distkv.errors import FrameTooLarge, MalformedMessage
from distkv.wire import channel
from distkv.wire.channel import MAX_ANSWER_BYTES, ClientChannel, ServerChannel
from distkv.wire.codec import MAX_MESSAGE_BYTES, encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE, CLIENT_CONNECTION, GMANAGER_PORT, PEER_CONNECTION
from distkv.wire.messages.common import MAX_REASON
from distkv.wire.messages.envelope import Control, Envelope
from distkv.wire.messages.from_worker import StepResult
from distkv.wire.messages.to_client import Rejected, TokenChunk
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import KeepAlive, Members
from distkv.wire.rejections import MAX_BAD_IN_A_ROW
from distkv.wire.sockets.flood_guard import LEAST_HEADER_BYTES, QUOTA_MESSAGES
from tests.waiting import soon, until
from tests.wire.channels.abort_recipes import LAST_FRAME, MORE_FRAMES, handshaken, shake_hands, zmtp
from tests.wire.channels.strangers import stranger_at


@pytest.mark.parametrize(
    "frames",
    [[b""], [b"\xc1"], [b"noise" * 100], [b"", b"", b""], [b"a", b"b"]],
    ids=["empty", "reserved", "noise", "three frames", "two frames"],
)
async def test_a_bad_message_costs_only_itself(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory, frames: list[bytes]
) -> None:
    with stranger_at(server.address) as stranger:
        stranger.send_multipart(frames)
        stranger.send(encode_envelope(envelopes.wrap(MembersQuery())))
        assert (await soon(server.recv()))[1].body == MembersQuery()
        await until(lambda: bool(stranger.poll(0)))
        answer = CLIENT_CONNECTION.decode(stranger.recv(zmq.DONTWAIT))
        assert isinstance(answer.body, Rejected) and not answer.body.closed
        assert answer.body.reason.startswith("malformed message: ")
        assert (answer.sender, answer.cause) == ("b", "")
        client.send(envelopes.wrap(KeepAlive()))
        assert (await soon(server.recv()))[1].body == KeepAlive()
        assert server.malformed == 1


async def test_a_rejection_names_the_envelope(envelopes: EnvelopeFactory) -> None:
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as server,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as client,
    ):
        bad = envelopes.wrap(KeepAlive())
        client.send(bad)
        client.send(envelopes.wrap(MembersQuery()))
        assert (await soon(server.recv()))[1].body == MembersQuery()
        answer = await soon(client.recv())
        assert isinstance(answer.body, Rejected) and answer.cause == bad.id


async def test_an_envelope_whose_id_is_most_of_it_is_rejected_without_it() -> None:
    """An answer that repeated it would exceed the limit of its reader."""
    async with ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as server:
        with stranger_at(server.address) as stranger:
            stranger.send(encode_envelope(Envelope(id="x" * (MAX_MESSAGE_BYTES - 100), sender="", body=MembersQuery())))
            waiting = asyncio.ensure_future(server.recv())
            await until(lambda: bool(stranger.poll(0)))
            answer = CLIENT_CONNECTION.decode(stranger.recv(zmq.DONTWAIT))
            assert isinstance(answer.body, Rejected) and answer.cause == ""
            waiting.cancel()


async def test_who_sends_nothing_but_nonsense_is_shut_out(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    with stranger_at(server.address) as stranger:
        for _ in range(MAX_BAD_IN_A_ROW + 5):
            stranger.send(b"noise")
        stranger.send(encode_envelope(envelopes.wrap(MembersQuery())))
        waiting = asyncio.ensure_future(server.recv())
        answers: list[Control] = []
        for _ in range(MAX_BAD_IN_A_ROW):
            await until(lambda: bool(stranger.poll(0)))
            answers.append(CLIENT_CONNECTION.decode(stranger.recv(zmq.DONTWAIT)).body)
        assert [answer.closed for answer in answers if isinstance(answer, Rejected)] == (
            [False] * (MAX_BAD_IN_A_ROW - 1) + [True]
        )
        client.send(envelopes.wrap(KeepAlive()))
        assert (await soon(waiting))[1].body == KeepAlive()
        assert server.malformed == MAX_BAD_IN_A_ROW


async def test_a_reason_is_not_as_long_as_what_it_is_about(server: ServerChannel[Control]) -> None:
    with stranger_at(server.address) as stranger:
        kind = "x" * 50_000
        stranger.send(msgspec.msgpack.encode({"id": "a", "sender": "a", "body": {"type": kind}}))
        waiting = asyncio.ensure_future(server.recv())
        await until(lambda: bool(stranger.poll(0)))
        answer = CLIENT_CONNECTION.decode(stranger.recv(zmq.DONTWAIT))
        assert isinstance(answer.body, Rejected) and len(answer.body.reason) == MAX_REASON
        waiting.cancel()


async def test_what_exceeds_the_limit_is_not_sent_and_costs_nothing(
    server: ServerChannel[Control], envelopes: EnvelopeFactory
) -> None:
    """It would end the connection, and with it what others have under way there."""
    dropped = asyncio.Event()
    big = envelopes.wrap(TokenChunk(request_id="r", text="x" * 200_000))
    async with ClientChannel.connect(
        server.address, CAPTURE, max_message_bytes=100_000, on_disconnected=dropped.set
    ) as client:
        with pytest.raises(FrameTooLarge, match="over the limit of 100000 bytes"):
            client.send(big)
        client.send(envelopes.wrap(KeepAlive()))
        route, envelope = await soon(server.recv())
        assert envelope.body == KeepAlive()
        with pytest.raises(FrameTooLarge):
            server.send(route, big)
        assert server.send(route, envelopes.wrap(KeepAlive()))
        assert (await soon(client.recv())).body == KeepAlive()
        assert not dropped.is_set()


async def test_a_message_of_very_many_parts_costs_its_own_connection_only(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    port = int(server.address.rsplit(":", 1)[1])
    parts = zmtp(MORE_FRAMES, b"") * 4 * QUOTA_MESSAGES + zmtp(LAST_FRAME, b"")
    with await asyncio.to_thread(handshaken, port) as stranger, capture_logs() as lines:
        await beside(server, client, envelopes, asyncio.to_thread(send_until_shut, stranger, parts, times=1))
        assert [line for line in lines if line["event"] == "a connection sent too much"] == [ANY]
        assert server.malformed


@pytest.mark.parametrize("parts", [0, 4 * QUOTA_MESSAGES])
async def test_who_talks_as_zeromq_did_before_4_ends_nothing(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory, parts: int
) -> None:
    """By which connection such a message came is not to be known. Its first byte is not that of a greeting of today."""
    port = int(server.address.rsplit(":", 1)[1])
    identity, more, last = b"\x01\x00", b"\x01\x01", b"\x06\x00hello"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:

        async def read() -> None:
            await asyncio.to_thread(stranger.sendall, identity + more * parts + last)
            await until(lambda: server.malformed > 0)

        await beside(server, client, envelopes, read())


async def test_a_message_that_does_not_end_costs_its_own_connection_only(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    port = int(server.address.rsplit(":", 1)[1])
    with await asyncio.to_thread(handshaken, port) as stranger, capture_logs() as lines:
        parts = zmtp(MORE_FRAMES, b"x" * 250) * 4000
        await beside(server, client, envelopes, asyncio.to_thread(send_until_shut, stranger, parts, times=200))
        assert [(line["event"], line["shut"]) for line in lines] == [("a connection sent too much", True)]
        assert server.malformed == 1


async def test_a_message_of_a_server_that_does_not_end_is_not_kept(envelopes: EnvelopeFactory) -> None:
    """The connection is shut, and the channel connects again."""

    def serve(listener: socket.socket, parts: bytes, *, times: int) -> None:
        stranger, _address = listener.accept()
        with stranger:
            shake_hands(stranger, b"ROUTER")
            send_until_shut(stranger, parts, times=times)

    with socket.create_server(("127.0.0.1", 0)) as listener, capture_logs() as lines:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        async with ClientChannel.connect(address, CAPTURE, max_message_bytes=100_000) as client:
            await asyncio.to_thread(serve, listener, zmtp(MORE_FRAMES, b"x" * 250) * 4000, times=200)
            await until(lambda: not client.connected)
            assert [(line["event"], line["at"], line["shut"]) for line in lines] == [
                ("a connection sent too much", address, True)
            ]
            assert client.malformed == 1
            whole = zmtp(LAST_FRAME, encode_envelope(envelopes.wrap(KeepAlive())))
            is_served = threading.Event()

            def serve_again() -> None:
                """On a slow machine the first one to accept has been given up already."""
                listener.settimeout(1.0)
                while not is_served.is_set():
                    with contextlib.suppress(OSError, AssertionError):
                        serve(listener, whole, times=1)

            again = asyncio.create_task(asyncio.to_thread(serve_again))
            try:
                assert (await soon(client.recv())).body == KeepAlive()
            finally:
                is_served.set()
        await again


async def beside(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory, attack: Awaitable[None]
) -> None:
    """Another client is served, once the attack is over."""
    waiting = asyncio.ensure_future(server.recv())
    await attack
    client.send(envelopes.wrap(KeepAlive()))
    assert (await soon(waiting))[1].body == KeepAlive()


def send_until_shut(stranger: socket.socket, parts: bytes, *, times: int) -> None:
    stranger.settimeout(5.0)
    with contextlib.suppress(OSError):
        for _ in range(times):
            stranger.sendall(parts)
    until_shut(stranger)


def until_shut(stranger: socket.socket) -> None:
    """Read what comes until the other end says no more."""
    stranger.settimeout(20.0)
    with contextlib.suppress(ConnectionError):
        while stranger.recv(65536):
            pass


async def test_over_long_messages_cost_their_own_connection_only(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    dropped = asyncio.Event()
    other = ClientChannel.connect(server.address, CAPTURE, on_disconnected=dropped.set)
    other.send(envelopes.wrap(TokenChunk(request_id="r", text="x" * 200_000)))
    await soon(dropped.wait())
    other.abort()
    client.send(envelopes.wrap(KeepAlive()))
    assert (await soon(server.recv()))[1].body == KeepAlive()


async def test_bytes_that_are_no_zeromq_harm_nobody(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    host, port = server.address.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        client.send(envelopes.wrap(KeepAlive()))
        assert (await soon(server.recv()))[1].body == KeepAlive()


async def test_a_malformed_answer_raises(envelopes: EnvelopeFactory) -> None:
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    async with ClientChannel.connect(f"tcp://127.0.0.1:{port}", CAPTURE) as client:
        client.send(envelopes.wrap(KeepAlive()))
        await until(lambda: bool(router.poll(0)))
        route = router.recv_multipart()[0]
        router.send_multipart([route, b"noise"])
        with pytest.raises(MalformedMessage):
            await soon(client.recv())
        assert client.malformed == 1
    router.close(0)


@pytest.mark.parametrize("kind", [StepResult, Members, KeepAlive], ids=lambda kind: kind.__name__)
async def test_what_may_not_come_by_an_inbox_is_refused(
    envelopes: EnvelopeFactory, kind: type[StepResult | Members | KeepAlive]
) -> None:
    """Well-formed messages of the protocol, but none that a gManager's port is for."""
    body = {
        StepResult: StepResult(step_id=1, results=()),
        Members: Members(version=1),
        KeepAlive: KeepAlive(),
    }[kind]
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as server,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as stranger,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as client,
    ):
        stranger.send(envelopes.wrap(body))
        waiting = asyncio.ensure_future(server.recv())
        refusal = (await soon(stranger.recv())).body
        assert isinstance(refusal, Rejected) and f"Invalid value '{kind.__name__}'" in refusal.reason
        client.send(envelopes.wrap(MembersQuery()))
        assert (await soon(waiting))[1].body == MembersQuery()
        assert server.malformed == 1


async def test_a_server_cannot_answer_what_its_clients_inbox_is_not_for(envelopes: EnvelopeFactory) -> None:
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as server,
        ClientChannel.connect(server.address, PEER_CONNECTION) as client,
    ):
        client.send(envelopes.wrap(MembersQuery()))
        route, _question = await soon(server.recv())
        server.send(route, envelopes.wrap(Members(version=1)))
        with pytest.raises(MalformedMessage, match="Invalid value 'Members'"):
            await soon(client.recv())
        assert client.malformed == 1


async def test_a_client_that_asks_for_much_and_reads_nothing_does_not_fill_the_memory(
    server: ServerChannel[Control],
    client: ClientChannel[Control],
    envelopes: EnvelopeFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: 5.0))
    client.send(envelopes.wrap(KeepAlive()))
    route, _envelope = await soon(server.recv())
    big = envelopes.wrap(TokenChunk(request_id="r", text="x" * 90_000))
    sent = 0
    while server.send(route, big):
        sent += 90_000
        assert sent < 2 * MAX_ANSWER_BYTES
    assert sent <= MAX_ANSWER_BYTES


async def test_what_is_sent_to_all_is_bounded_for_each(
    server: ServerChannel[Control], envelopes: EnvelopeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list goes to whoever asks for it, in a loop if need be."""
    sent: list[bytes] = []
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: 5.0))
    monkeypatch.setattr(server._socket, "send_each", lambda messages: sent.extend(route for route, _ in messages))
    frame = server.encoded(envelopes.wrap(TokenChunk(request_id="r", text="x" * 60_000)))
    for _ in range(2 * MAX_ANSWER_BYTES // len(frame)):
        server.send_to_all((b"asks",), frame)
    server.send_to_all((b"asks", b"other"), frame)
    assert sent.count(b"asks") == MAX_ANSWER_BYTES // (len(frame) + LEAST_HEADER_BYTES) and sent.count(b"other") == 1


async def test_what_comes_in_may_have_a_limit_of_its_own(envelopes: EnvelopeFactory) -> None:
    lost = asyncio.Event()
    long, short = TokenChunk(request_id="r", text="x" * 50_000), KeepAlive()
    async with (
        ServerChannel[Control].bind("tcp://127.0.0.1:0", CAPTURE, max_received_bytes=10_000) as server,
        ClientChannel[Control].connect(server.address, CAPTURE, on_disconnected=lost.set) as client,
    ):
        client.send(envelopes.wrap(short))
        route, _ = await soon(server.recv())
        assert server.send(route, envelopes.wrap(long))
        assert (await soon(client.recv())).body == long
        client.send(envelopes.wrap(long))
        await soon(lost.wait())
