"""The in-process twin of the tensor links: queues for frames, direct memory for reads, and faults on demand."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from distkv.errors import ConfigError, FrameTooLarge, HandshakeRefused, LinkClosed, LinkTimeout, MalformedMessage
from distkv.wire.codec import decode_header, encode_header
from distkv.wire.links.base import MAX_BODY_BYTES, SEND_TIMEOUT_S, BlockRead, Buffer
from distkv.wire.links.handshake import LinkIdentity, answer_hello, check_answer
from distkv.wire.links.memory.mapped_copy import copy_runs
from distkv.wire.links.memory.pool_memory import Part, Pool, PoolMemory, host_key
from distkv.wire.links.memory.runs import Destination, Runs, read_problem, runs_of
from distkv.wire.links.streams.iovec import byte_views
from distkv.wire.links.transports.faults import Call, Faults
from distkv.wire.links.transports.offer import TransportUnusable
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import DataMessage, Denied, Hello

SCHEME = "inproc://"

_listeners: dict[str, InprocListener] = {}
_listeners_lock = threading.Lock()


class _Pipe:
    """What both ends of a link share. Frames wait in `inbox[end]` for the reader `end`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inbox: tuple[deque[tuple[bytes, bytearray]], deque[tuple[bytes, bytearray]]] = (deque(), deque())
        self.ended = [False, False]
        self.faults: list[Faults] = []


class InprocLink:
    """A TensorLink within one process. faults: what goes wrong at this end; harmless unless programmed."""

    transport = "inproc"
    within_host = True

    def __init__(self, pipe: _Pipe, end: int, peer: str, pool: PoolMemory, faults: Faults) -> None:
        self.faults = faults
        self._pipe, self._end = pipe, end
        self._peer = peer
        self._pool = pool
        self._why_dead = ""
        pipe.faults.append(faults)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def stream(self) -> None:
        return None

    @property
    def mapped(self) -> memoryview | None:
        return self._pool.view.toreadonly()

    def send(self, header: DataMessage, *buffers: Buffer, timeout_s: float = SEND_TIMEOUT_S) -> None:
        views, size = byte_views(buffers)
        if size > MAX_BODY_BYTES:
            raise FrameTooLarge(size, MAX_BODY_BYTES)
        try:
            self._faulty("send", time.monotonic() + timeout_s, timeout_s)
        except LinkTimeout as e:
            self._die(str(e))
            raise
        body = bytearray().join(views)
        self.faults.spoil("send", [memoryview(body)])
        with self._pipe.changed:
            self._check_open()
            if self._pipe.ended[1 - self._end]:
                raise self._die("it ended")
            self._pipe.inbox[1 - self._end].append((encode_header(header), body))
            self._pipe.changed.notify_all()

    def recv(self, timeout_s: float) -> tuple[DataMessage, memoryview]:
        deadline = time.monotonic() + timeout_s
        self._faulty("recv", deadline, timeout_s)
        inbox = self._pipe.inbox[self._end]
        with self._pipe.changed:
            while not inbox:
                self._check_open()
                if self._pipe.ended[1 - self._end]:
                    raise self._die("it ended")
                if not self._pipe.changed.wait(max(0.0, deadline - time.monotonic())) and not inbox:
                    raise LinkTimeout(self._peer, timeout_s)
            self._check_open()
            encoded, body = inbox.popleft()
        header = decode_header(encoded)
        if isinstance(header, Denied):
            raise self._die(f"it refused: {header.field} should be {header.expected}, got {header.got}")
        view = memoryview(body)
        self.faults.spoil("recv", [view])
        return header, view

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        if problem := read_problem(self._pool, slots, into, part):
            raise MalformedMessage(problem)
        self._check_peer()
        return _Read(self, runs_of(slots, self._pool.slot_bytes, into, part), into, self.faults.begin("read"))

    def read(self, slots: Sequence[int], into: Destination, timeout_s: float, part: Part | None = None) -> None:
        self.read_blocks(slots, into, part).wait(timeout_s)

    def complete(self, runs: Runs, into: Destination, call: Call, deadline: float) -> bool:
        """Copy what a read is to copy, unless it is to stay pending until `deadline` passed."""
        if not self.faults.meet(call, deadline, lambda: bool(self._why_dead or self._pipe.ended[1 - self._end])):
            return False
        self._check_peer()
        copy_runs(self._pool.memory, runs)
        self.faults.spoil("read", into)
        self._check_peer()
        return True

    def give_up(self, waited_s: float) -> LinkTimeout:
        """A read took too long."""
        late = LinkTimeout(self._peer, waited_s)
        self._die(str(late))
        return late

    def close(self) -> None:
        self._finish(abrupt=False)

    def abort(self) -> None:
        self._finish(abrupt=True)

    def _finish(self, abrupt: bool) -> None:
        with self._pipe.changed:
            self._why_dead = self._why_dead or "it was closed on this side"
            was_closed, self._pipe.ended[self._end] = self._pipe.ended[self._end], True
            if abrupt and not was_closed:
                self._pipe.inbox[1 - self._end].clear()
            self._pipe.changed.notify_all()
        for faults in list(self._pipe.faults):
            faults.interrupt()

    def _faulty(self, verb: str, deadline: float, timeout_s: float) -> None:
        with self._pipe.changed:
            self._check_open()
        if not self.faults.meet(self.faults.begin(verb), deadline, lambda: bool(self._why_dead)):
            raise LinkTimeout(self._peer, timeout_s)

    def _check_open(self) -> None:
        if self._why_dead:
            raise LinkClosed(self._peer, self._why_dead)

    def _check_peer(self) -> None:
        with self._pipe.changed:
            self._check_open()
            if self._pipe.ended[1 - self._end]:
                raise self._die("it ended")

    def _die(self, why: str) -> LinkClosed:
        self._why_dead = self._why_dead or why
        return LinkClosed(self._peer, self._why_dead)


class _Read:
    """See BlockRead: copies when it is no longer held."""

    def __init__(self, link: InprocLink, runs: Runs, into: Destination, call: Call) -> None:
        self._link, self._runs, self._into, self._call = link, runs, into, call
        self._is_complete = False

    def poll(self) -> bool:
        return self._complete(time.monotonic())

    def wait(self, timeout_s: float) -> None:
        if not self._complete(time.monotonic() + timeout_s):
            raise self._link.give_up(timeout_s)

    def _complete(self, deadline: float) -> bool:
        if not self._is_complete:
            self._is_complete = self._link.complete(self._runs, self._into, self._call, deadline)
        return self._is_complete


class InprocListener:
    """A LinkListener at "inproc://name". faults: met by those who connect here, in their ends of the links."""

    def __init__(self, address: str, identity: LinkIdentity, pool: PoolMemory) -> None:
        """Raises ConfigError when the name is taken."""
        self.address = address
        self.identity = identity
        self.pool = pool
        self.faults = Faults()
        self.malformed = self.refused = 0
        self._changed = threading.Condition()
        self._backlog: deque[InprocLink] = deque()
        self._closed = False
        with _listeners_lock:
            if address in _listeners:
                raise ConfigError("address", f"{address} is in use")
            _listeners[address] = self

    @property
    def endpoint(self) -> DataEndpoint:
        return DataEndpoint(
            address=self.address,
            host_key=host_key(),
            slot_bytes=self.pool.slot_bytes,
            num_slots=self.pool.num_slots,
        )

    def accept(self, timeout_s: float) -> InprocLink | None:
        with self._changed:
            self._changed.wait_for(lambda: self._backlog or self._closed, timeout_s)
            if self._closed:
                raise LinkClosed(self.address, "the listener is closed")
            return self._backlog.popleft() if self._backlog else None

    def close(self) -> None:
        with _listeners_lock:
            if _listeners.get(self.address) is self:
                del _listeners[self.address]
        with self._changed:
            self._closed = True
            for link in self._backlog:
                link.abort()
            self._backlog.clear()
            self._changed.notify_all()

    def join(self, endpoint: DataEndpoint, hello: Hello) -> InprocLink:
        """Both ends' handshake; returns the connecting end."""
        answer = answer_hello(hello, self.identity, self.pool)
        try:
            check_answer(answer, hello, endpoint)
        except HandshakeRefused:
            self.refused += 1
            raise
        pipe = _Pipe()
        with self._changed:
            if self._closed:
                raise LinkClosed(hello.expects_id, f"nobody listens at {self.address}")
            self._backlog.append(InprocLink(pipe, 1, hello.instance_id, self.pool, Faults()))
            self._changed.notify_all()
        return InprocLink(pipe, 0, hello.expects_id, self.pool, self.faults)


def listen(address: str, identity: LinkIdentity, pool: Pool) -> InprocListener:
    """Accept links of this process. Raises ConfigError when the name is taken, or the pool is on a GPU."""
    if not isinstance(pool, PoolMemory):
        raise ConfigError("address", f"{address} is for pools in main memory", "listen at host:port")
    return InprocListener(address, identity, pool)


def connect(endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> InprocLink:
    """A link to a listener of this process, at once; see registry.CONNECT."""
    if not endpoint.address.startswith(SCHEME):
        raise TransportUnusable("the peer is another process")
    with _listeners_lock:
        listener = _listeners.get(endpoint.address)
    if listener is None:
        raise LinkClosed(hello.expects_id, f"nobody listens at {endpoint.address}")
    return listener.join(endpoint, hello)
