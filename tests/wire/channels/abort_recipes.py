"""Ways in which a connection could end the whole process of the other end, inside libzmq (3937, 4364, 4767).

`python -m tests.wire.channels.abort_recipes flood|ping|blocked TRIES`: the process aborts if one of them works.
A recipe needs more messages than a receive high-water mark admits, and a reader that does not read meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import zmq

from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.codec import encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_rmanager import KeepAlive
from distkv.wire.sockets.flood_guard import FloodGuard

MESSAGES = 12_000
BLOCKED_S = 6.0
SETTLE_S = 0.02
# What was sent every second before, also by connections that had failed.
HEARTBEAT_S = 1.1
AT_ONCE = {"flood": 50, "ping": 8, "blocked": 50}

ENVELOPES = EnvelopeFactory("a")
FRAME = encode_envelope(ENVELOPES.wrap(KeepAlive()))
COMMAND, MORE_FRAMES, LAST_FRAME = 4, 1, 0
Server = ServerChannel[Control]


def drain(channel: Server | ClientChannel[Control], count: int, quiet_s: float) -> int:
    """Read up to `count` messages, until none comes for `quiet_s`."""
    for got in range(count):
        if channel._socket.recv_now() is None:
            block(quiet_s)
            if channel._socket.recv_now() is None:
                return got
    return count


def block(seconds: float) -> None:
    """What else this process does meanwhile: nothing."""
    time.sleep(seconds)


async def flood(server: Server, at_once: int) -> None:
    """Floods and disconnects while the server reads nothing; then it reads."""
    flood_and_leave(server.address, at_once)
    block(HEARTBEAT_S)
    drain(server, at_once * MESSAGES, SETTLE_S)


def flood_and_leave(address: str, at_once: int, frame: bytes = FRAME) -> None:
    """Connections that send more than a reader's queue would take, and are gone before it is read."""
    with zmq.Context() as context:
        dealers = [context.socket(zmq.DEALER) for _ in range(at_once)]
        for dealer in dealers:
            dealer.linger, dealer.sndhwm, dealer.heartbeat_ivl = 0, 0, 100
            dealer.connect(address)
            for _ in range(MESSAGES):
                dealer.send(frame)
        block(0.2)
        for dealer in dealers:
            dealer.close()


async def ping(server: Server, at_once: int) -> None:
    """A PING behind what is too much, and a reset: answering it writes to a connection that has failed."""
    ping_and_reset(server.address, at_once)
    block(SETTLE_S)
    drain(server, at_once * MESSAGES, SETTLE_S)


def ping_and_reset(address: str, at_once: int, frame: bytes = FRAME) -> None:
    """One connection after the other that sends more than a reader's queue would take, then PINGs, then a reset."""
    port = int(address.rsplit(":", 1)[1])
    for _ in range(at_once):
        with handshaken(port) as stranger:
            one, with_ping = zmtp(LAST_FRAME, frame), zmtp(LAST_FRAME, frame) + zmtp(COMMAND, b"\x04PING\0\0")
            stranger.settimeout(1.0)
            with contextlib.suppress(OSError):  # where nobody reads any more, or it is shut
                stranger.sendall(one * 9_990 + with_ping * (MESSAGES - 9_990))
            block(SETTLE_S)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def handshaken(port: int) -> socket.socket:
    """A connection that has said, in ZMTP, that it is a DEALER."""
    stranger = socket.create_connection(("127.0.0.1", port))
    shake_hands(stranger, b"DEALER")
    return stranger


def shake_hands(stranger: socket.socket, kind: bytes) -> None:
    """Say, in ZMTP, that this is a socket of a kind that the other end talks to."""
    stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32))
    assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64
    stranger.sendall(zmtp(COMMAND, b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind))
    stranger.recv(4096)


def zmtp(flags: int, payload: bytes) -> bytes:
    return bytes([flags, len(payload)]) + payload


async def blocked(_server: Server, at_once: int) -> None:
    """Clients whose process does nothing for a while, with much waiting for it; nothing is lost."""
    with zmq.Context() as context:
        routers, clients = [], []
        for _ in range(at_once):
            router = context.socket(zmq.ROUTER)
            router.linger, router.sndhwm = 0, 0
            router.heartbeat_ivl, router.heartbeat_timeout, router.heartbeat_ttl = 1000, 3000, 3000
            port = router.bind_to_random_port("tcp://127.0.0.1")
            routers.append(router)
            clients.append(ClientChannel.connect(f"tcp://127.0.0.1:{port}", CAPTURE))
            clients[-1].send(ENVELOPES.wrap(KeepAlive()))

        def say_much() -> None:
            for router in routers:
                route, _hello = router.recv_multipart()
                for _ in range(MESSAGES):
                    router.send_multipart([route, FRAME])

        saying = threading.Thread(target=say_much)
        saying.start()
        block(BLOCKED_S)
        saying.join()
        for client in clients:
            assert drain(client, MESSAGES, 5.0) == MESSAGES
            await client.wait_connected()
            await asyncio.sleep(0)
            assert client.connected
            client.abort()
        for router in routers:
            router.close()


RECIPES: dict[str, Callable[[Server, int], Coroutine[Any, Any, None]]] = {
    "flood": flood,
    "ping": ping,
    "blocked": blocked,
}


async def main(name: str, tries: int) -> None:
    admits_all = FloodGuard(messages=sys.maxsize, size_bytes=sys.maxsize)
    async with Server.bind("tcp://127.0.0.1:0", CAPTURE, guard=admits_all) as server:
        for done in range(0, tries, AT_ONCE[name]):
            await RECIPES[name](server, min(AT_ONCE[name], tries - done))
    print(f"{tries} tries of {name}: no abort")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
