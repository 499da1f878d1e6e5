"""Connections that say nothing, in numbers, cost those that do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
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
from distkv.wire.sockets.options import MAX_SOCKETS, shared_context
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


def is_shut(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        return stranger.recv(1) == b""
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
