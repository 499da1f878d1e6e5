"""Thousands of instances as a gManager sees them: their joins and heartbeats, from one thread of this process.

Several share a connection, each under its own name, so that one machine has descriptors and time for all of them.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from typing import Self

import zmq

from distkv.bench.workloads.deciding.gmanager_queries import NoAnswer
from distkv.bench.workloads.deciding.heartbeat_frames import BLOCKS, HeartbeatFrames, instance_name
from distkv.wire.codec import encode_envelope
from distkv.wire.messages.common import DataEndpoint, Member
from distkv.wire.messages.envelope import Envelope, ToGManager
from distkv.wire.messages.to_gmanager import Join, Leave, MembersQuery

HOST_INSTANCES = 8
QUIET_S = 1.0
SLOTS = 2048
"""Moments in a period at which some instances send their heartbeats."""
_STRIDE = 1265
"""From one instance's slot to the next one's: odd, and so that few and many spread evenly."""
READ_EVERY_S = 0.05
"""What has come by one connection after the other is read about so often, a little at a time."""


class Fleet:
    """Instances that have joined a gManager at `address`, and what came back.

    sent: heartbeats. late_s: by how much they were, for each moment at which some were due. copies, copy_bytes: of
    member lists with what was watched for.
    """

    def __init__(self, address: str, num_connections: int, period_s: float) -> None:
        self._context = zmq.Context(io_threads=1)
        self._period_s = period_s
        self._sockets = [self._connect(address) for _ in range(num_connections)]
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)
        self._probe = self._connect(address)
        self._seqs: list[int] = []
        self._frames = HeartbeatFrames()
        self._slots: list[list[int]] = [[] for _ in range(SLOTS)]
        self._slot, self._slot_due_s = 0, time.monotonic()
        self._next_read = 0
        self._reads_at_once = math.ceil(num_connections * period_s / (SLOTS * READ_EVERY_S))
        self.sent = 0
        self.late_s: list[float] = []
        self.copies: dict[bytes, int] = {}
        self.copy_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def __len__(self) -> int:
        return len(self._seqs)

    # --- membership

    def grow(self, count: int, deadline_s: float, say: Callable[[str], None]) -> None:
        """Join until there are `count`, and wait until all that they are sent has come. Raises NoAnswer."""
        while len(self) < count:
            for _ in range(min(50, count - len(self))):
                self._join(len(self))
            self.run(0.02)
            say(f"{len(self):,} instances have joined")
        self.settle(deadline_s)

    def settle(self, deadline_s: float) -> None:
        """Go on until nothing is left that is to be sent to everybody: lists are answered behind that. Raises
        NoAnswer."""
        give_up_s = time.monotonic() + deadline_s
        self._probe.send(encode_envelope(Envelope(id="p", sender="probe", body=MembersQuery(changes_only=True))))
        while not self._probe.poll(0):
            self.run(0.1)
            if time.monotonic() > give_up_s:
                raise NoAnswer(f"the member list of {len(self)} instances did not settle within {deadline_s:g} s")
        self._probe.recv()

    def leave(self, number: int) -> tuple[float, int] | None:
        """One of them leaves: the seconds until the last of the others was sent that, and the bytes of it. There are no
        heartbeats meanwhile, so that this alone is what the gManager does. None if hardly anybody was sent it, because
        the fleet had no time to beat and counts as silent."""
        mark = instance_name(number).encode()
        self.copies.clear()
        self.copy_bytes = 0
        started = last_s = time.perf_counter()
        self._send(number, Leave(instance_id=instance_name(number), incarnation=1))
        while (came := self.copies.get(mark, 0)) < len(self) - 1 and time.perf_counter() < last_s + QUIET_S:
            self._read(mark)
            if self.copies.get(mark, 0) != came:
                last_s = time.perf_counter()
        if came < len(self) // 2:
            return None
        return last_s - started, self.copy_bytes

    def rejoin(self, number: int) -> None:
        """One that left is there again."""
        self._join(number)

    # --- work

    def run(self, seconds: float) -> None:
        """Send heartbeats as they fall due, and read what comes, for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self._work())

    def _work(self) -> float:
        """Send what is due, read some of what has come; how long to wait until there is more to do."""
        self._beat(time.monotonic())
        for _ in range(self._reads_at_once):
            self._drain(self._sockets[self._next_read], None)
            self._next_read = (self._next_read + 1) % len(self._sockets)
        return max(0.0, self._slot_due_s - time.monotonic())

    def _beat(self, now: float) -> None:
        """The heartbeats of the next slot, if it is due; what is more than a period late is left out."""
        if self._slot_due_s > now:
            return
        self.late_s.append(now - self._slot_due_s)
        for number in self._slots[self._slot]:
            self._seqs[number] = seq = self._seqs[number] + 1
            self._sockets[number % len(self._sockets)].send(self._frames.frame(number, seq))
        self.sent += len(self._slots[self._slot])
        self._slot = (self._slot + 1) % SLOTS
        self._slot_due_s = max(self._slot_due_s, now - self._period_s) + self._period_s / SLOTS

    def _read(self, watch: bytes) -> None:
        for socket, _ in self._poller.poll(1):
            self._drain(socket, watch)

    def _drain(self, socket: zmq.Socket[bytes], watch: bytes | None) -> None:
        try:
            while True:
                frame = socket.recv(zmq.DONTWAIT)
                if watch is not None and b"Members" in frame and watch in frame:
                    self.copies[watch] = self.copies.get(watch, 0) + 1
                    self.copy_bytes += len(frame)
        except zmq.Again:
            return

    def _join(self, number: int) -> None:
        self._send(number, join_of(number, self._period_s))
        if number == len(self._seqs):
            self._seqs.append(0)
            self._frames.add(instance_name(number))
            self._slots[number * _STRIDE % SLOTS].append(number)

    def _send(self, number: int, body: ToGManager) -> None:
        name = instance_name(number)
        frame = encode_envelope(Envelope(id=f"{name}-{type(body).__name__}-{self.sent}", sender=name, body=body))
        self._sockets[number % len(self._sockets)].send(frame)

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.set(zmq.IDENTITY, b"\x01" + secrets.token_bytes(16))
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.connect(address)
        return socket


def join_of(number: int, heartbeat_s: float) -> Join:
    """What an instance presents itself with, ready to serve."""
    data = DataEndpoint(
        address=f"10.0.{number // 250}.{number % 250}:7090", host_key=f"{number // HOST_INSTANCES:036d}"
    )
    member = Member(
        instance_id=instance_name(number),
        incarnation=1,
        address=f"tcp://10.0.{number // 250}.{number % 250}:7080",
        state="ready",
        block_tokens=16,
        total_blocks=BLOCKS,
        lendable_blocks=BLOCKS - 1,
        free_blocks=BLOCKS,
        data=data,
        heartbeat_s=heartbeat_s,
    )
    return Join(member=member, compat="model", swaps=True)
