"""Instances that join a gManager at once, each by its own connection, and follow its member list as rManagers do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec
import zmq

from distkv.bench.workloads.deciding.gmanager_load import join_of
from distkv.bench.workloads.deciding.gmanager_queries import NoAnswer
from distkv.bench.workloads.deciding.heartbeat_frames import instance_name
from distkv.wire.codec import encode_envelope
from distkv.wire.messages.envelope import Envelope, ToGManager
from distkv.wire.messages.member_versions import MemberCursor
from distkv.wire.messages.to_rmanager import Members

ASK_S = 1.0
"""Who lacks something asks for it so often: an rManager does with each heartbeat."""
SPARE_SOCKETS = 16


class Joined(msgspec.Struct, frozen=True):
    """What it took. whole_s: from the first Join until each has the whole list. received_bytes: by all of them."""

    whole_s: float
    received_bytes: int


class _Head(msgspec.Struct, frozen=True):
    """What is read of a `Members`: how far it brings a list, and from where; not who is on it."""

    version: int
    incarnation: int = 0
    base: int = 0
    more: bool = False
    newest: int = 0


class _Heard(msgspec.Struct, frozen=True):
    body: _Head


_heads: msgspec.msgpack.Decoder[_Heard] = msgspec.msgpack.Decoder(_Heard)


def join_at_once(address: str, count: int, deadline_s: float, meanwhile: Callable[[], bool]) -> Joined:
    """`count` instances join a gManager that knows nobody. Returns when each has the whole list and `meanwhile`, which
    is called every now and then, is False. Raises NoAnswer after deadline_s."""
    with zmq.Context(io_threads=1) as context:
        context.set(zmq.MAX_SOCKETS, count + SPARE_SOCKETS)
        joiners = _Joiners(context, address, count)
        try:
            begun_s = time.perf_counter()
            joiners.join()
            whole_s = 0.0
            while not whole_s or meanwhile():
                joiners.read()
                joiners.ask(time.perf_counter())
                if not whole_s and joiners.all_know_all:
                    whole_s = time.perf_counter() - begun_s
                if time.perf_counter() > begun_s + deadline_s:
                    raise NoAnswer(f"{count:,} instances that joined did not know each other within {deadline_s:g} s")
            return Joined(whole_s, joiners.received_bytes)
        finally:
            context.destroy(linger=0)


class _Joiners:
    """Their connections, and how far each has followed the list."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, count: int) -> None:
        self._poller = zmq.Poller()
        self._sockets = list[zmq.Socket[bytes]]()
        for _ in range(count):
            socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
            socket.set(zmq.IDENTITY, b"\x01" + secrets.token_bytes(16))
            socket.set(zmq.RCVHWM, 0)
            socket.connect(address)
            self._poller.register(socket, zmq.POLLIN)
            self._sockets.append(socket)
        self._cursors = {socket: MemberCursor() for socket in self._sockets}
        self._lacking = set(self._sockets)
        self._next_ask_s = time.perf_counter() + ASK_S
        self.received_bytes = 0

    @property
    def all_know_all(self) -> bool:
        return not self._lacking

    def join(self) -> None:
        for number, socket in enumerate(self._sockets):
            _send(socket, instance_name(number), join_of(number, ASK_S))

    def read(self) -> None:
        """What has come."""
        for socket, _ in self._poller.poll(10):
            cursor = self._cursors[socket]
            while socket.poll(0):
                frame = socket.recv()
                self.received_bytes += len(frame)
                head = _heads.decode(frame).body
                cursor.take(
                    Members(
                        version=head.version,
                        incarnation=head.incarnation,
                        base=head.base,
                        more=head.more,
                        newest=head.newest,
                    )
                )
            if cursor.query().version >= len(self._sockets) and not cursor.is_behind:
                self._lacking.discard(socket)

    def ask(self, now_s: float) -> None:
        """Those who know that something is missing ask for it, when it is time."""
        if now_s < self._next_ask_s:
            return
        self._next_ask_s = now_s + ASK_S
        for number, socket in enumerate(self._sockets):
            if (cursor := self._cursors[socket]).is_behind:
                _send(socket, instance_name(number), cursor.query())


def _send(socket: zmq.Socket[bytes], name: str, body: ToGManager) -> None:
    socket.send(encode_envelope(Envelope(id=f"{name}-{type(body).__name__}", sender=name, body=body)))
