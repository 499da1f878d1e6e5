"""Connections that say nothing, in numbers, cost those that do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import zmq
from structlog.testing import capture_logs

from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import KeepAlive
from distkv.wire.sockets import connection_limit
from distkv.wire.sockets.connection_limit import GREETING_BYTES, UNHEARD_S
from distkv.wire.sockets.options import MAX_SOCKETS, shared_context
from distkv.wire.sockets.tcp_connection import received_bytes
from tests.waiting import until
from tests.wire.channels.abort_recipes import handshaken

DEADLINE_S = 20.0
MOST = 16
ENVELOPES = EnvelopeFactory("a")


async def heard(server: ServerChannel[Control], client: ClientChannel[Control]) -> None:
    """The client says something long enough to count, and is answered."""
    client.send(ENVELOPES.wrap(MembersQuery()))
    async with asyncio.timeout(DEADLINE_S):
        route, _envelope = await server.recv()
        assert server.send(route, ENVELOPES.wrap(KeepAlive()))
        await client.recv()


async def test_silent_connections_are_shut_for_new_ones_and_those_that_speak_stay() -> None:
    lost: list[int] = []
    async with ServerChannel[Control].bind("tcp://127.0.0.1:0", CAPTURE, max_connections=MOST) as server:
        port = int(server.address.rsplit(":", 1)[1])
        with contextlib.ExitStack() as stack, capture_logs() as lines:
            speaking = [ClientChannel.connect(server.address, CAPTURE, on_disconnected=lambda: lost.append(0))]
            for _ in range(8):  # what the limit looks at is how much came, not what
                await heard(server, speaking[0])
            silent: list[socket.socket] = []
            for _ in range(4 * MOST):
                stranger = await asyncio.to_thread(handshaken, port)
                silent.append(stack.enter_context(stranger))
            speaking.append(ClientChannel.connect(server.address, CAPTURE, on_disconnected=lambda: lost.append(1)))
            for client in speaking:
                await heard(server, client)
            assert len(server._limit.descriptors) <= MOST
            shut = [one for one in silent if is_shut(one)]
            assert len(shut) >= 3 * MOST and shut == silent[: len(shut)], "the oldest"
            assert not lost
            assert [line["event"] for line in lines] == ["too many connections"]
            for client in speaking:
                client.abort()


async def test_those_that_have_spoken_once_are_shut_for_new_ones_and_those_that_speak_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only after a while: where all speak, the new one goes, or each that is shut would come again for another."""
    now_s, lost = 100.0, []
    monkeypatch.setattr(connection_limit, "time", SimpleNamespace(monotonic=lambda: now_s))
    async with ServerChannel[Control].bind("tcp://127.0.0.1:0", CAPTURE, max_connections=MOST) as server:
        port, limit = int(server.address.rsplit(":", 1)[1]), server._limit
        with contextlib.ExitStack() as stack, capture_logs():
            once = [stack.enter_context(await asyncio.to_thread(handshaken, port)) for _ in range(MOST - 1)]
            for stranger in once:
                stranger.sendall(bytes((0, 255)) + bytes(255))
                stranger.sendall(bytes((0, 255)) + bytes(255))
            speaking = ClientChannel.connect(server.address, CAPTURE, on_disconnected=lambda: lost.append(0))
            for _ in range(8):
                await heard(server, speaking)
            await until(lambda: all(received_bytes(one) > GREETING_BYTES for one in limit.descriptors))
            looked_at = server._unfinished._received
            await until(lambda: all(looked_at.get(one) == received_bytes(one) for one in limit.descriptors))
            refused = stack.enter_context(await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port)))
            await until(lambda: is_shut(refused))
            now_s += UNHEARD_S
            await heard(server, speaking)
            await until(lambda: limit.descriptors[list(limit.descriptors)[-1]][0] == now_s)
            late = ClientChannel.connect(server.address, CAPTURE)
            await heard(server, late)
            await until(lambda: any(is_shut(one) for one in once))
            assert sum(is_shut(one) for one in once) == 1 and not lost
            speaking.abort()
            late.abort()


def is_shut(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        while found := stranger.recv(4096):
            pass
        return found == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_process_without_descriptors_is_told_and_goes_on() -> None:
    program = """
import asyncio, resource, sys
from distkv.errors import LinkClosed
from distkv.wire.channel import ClientChannel
from distkv.wire.inboxes import CAPTURE

async def main():
    clients = []
    try:
        while True:
            clients.append(ClientChannel.connect("tcp://127.0.0.1:9", CAPTURE))
    except LinkClosed as error:
        print(error)
    for client in clients:
        client.abort()

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
asyncio.run(main())
"""
    for limit in (80, 81, 82, 83):  # wherever it runs out
        command = [sys.executable, "-c", program, str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "Too many open files" in done.stdout


async def test_a_process_may_have_thousands_of_connections() -> None:
    assert shared_context().get(zmq.MAX_SOCKETS) == MAX_SOCKETS


async def test_who_has_no_descriptor_left_says_so_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ServerChannel[Control].bind("tcp://127.0.0.1:0", CAPTURE) as server:
        limit = server._limit
        with capture_logs() as lines:
            limit._look()
            assert not lines
            monkeypatch.setattr(os, "open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
            for _ in range(100):
                limit._timer.cancel()
                limit._look()
        monkeypatch.undo()
        assert [(line["event"], line["problem"]) for line in lines] == [
            ("no connection can be accepted", "Too many open files")
        ]
