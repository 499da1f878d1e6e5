"""Accepts tensor links on a socket. Handshakes run side by side, so a slow or silent stranger delays nobody."""

from __future__ import annotations

import math
import os
import secrets
import select
import socket
import threading
import time
from contextlib import ExitStack

import structlog

from distkv.config import check_bind
from distkv.errors import ConfigError, LinkClosed, LinkError, LinkTimeout, WireError
from distkv.log.line_limit import LineLimit
from distkv.wire.address import join_host_port, needs_ipv6, port_hint, split_host_port
from distkv.wire.links.base import MAX_BODY_BYTES, MAX_HEADER_BYTES
from distkv.wire.links.handshake import HANDSHAKE_HEADER_BYTES, LinkIdentity, answer_hello, refusal
from distkv.wire.links.memory.pool_memory import Pool, host_key
from distkv.wire.links.registration import Registrations
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.transports.offer import offers
from distkv.wire.links.transports.sockets import UnixSocket, tune
from distkv.wire.links.transports.stream_link import StreamLink
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Denied, Hello

MAX_PENDING = 64
HANDSHAKE_TIMEOUT_S = 3.0

_log = structlog.get_logger("distkv.wire.links")


class _Pending:
    """A connection that has not finished its handshake."""

    def __init__(self, frames: FrameSocket, deadline: float, transport: str) -> None:
        self.frames, self.deadline, self.transport = frames, deadline, transport


class SocketListener:
    """A LinkListener for peers on this host and on others; both read from `pool`, which must outlive it."""

    def __init__(
        self,
        address: str,
        identity: LinkIdentity,
        pool: Pool,
        *,
        insecure: bool = False,
        registered: Registrations | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        """Listen at "host:port"; port 0 is automatic. Raises ConfigError as `ServerChannel.bind` does."""
        host, port = split_host_port(address)
        check_bind(host, insecure)
        self.malformed = self.refused = 0
        self.identity = identity
        self._pool = pool
        self._offers = {name: registration.offer for name, registration in (registered or {}).items()}
        self._handshake_timeout_s = handshake_timeout_s
        self._closed = False
        self._pending: dict[int, _Pending] = {}
        self._strangers, self._refusals, self._no_room = LineLimit(), LineLimit(), LineLimit()
        self._unix_name = f"distkv-link-{secrets.token_hex(16)}"
        try:
            with ExitStack() as undo:
                family = socket.AF_INET6 if needs_ipv6(host) else socket.AF_INET
                far = undo.enter_context(socket.create_server((host, port), family=family, backlog=MAX_PENDING))
                near = undo.enter_context(socket.socket(socket.AF_UNIX))
                near.bind(f"\0{self._unix_name}")
                near.listen(MAX_PENDING)
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                undo.pop_all()
        except OSError as e:
            raise ConfigError("address", f"cannot listen at {address}: {e.strerror or e}", port_hint(e.errno)) from None
        self._listening = {sock.fileno(): sock for sock in (far, near)}
        self._lock, self._close_lock = threading.Lock(), threading.Lock()
        self._pause = select.poll()
        self._pause.register(self._wake, select.POLLIN)
        self._poll = select.poll()
        for fd, sock in self._listening.items():
            sock.setblocking(False)
            self._poll.register(fd, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self.address = join_host_port(host, far.getsockname()[1])

    @property
    def endpoint(self) -> DataEndpoint:
        unix = UnixSocket(name=self._unix_name)
        return DataEndpoint(
            address=self.address,
            host_key=host_key(),
            slot_bytes=self._pool.slot_bytes,
            num_slots=self._pool.num_slots,
            transports=offers(unix=unix, shm=self._pool.mappable, **self._offers),
        )

    def accept(self, timeout_s: float) -> StreamLink | None:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not self._closed:
                next_s = min([deadline, *(pending.deadline for pending in self._pending.values())]) - time.monotonic()
                for fd, _events in self._poll.poll(max(0, math.ceil(next_s * 1000))):
                    if fd in self._listening:
                        self._admit(self._listening[fd])
                    elif (pending := self._pending.get(fd)) and (link := self._progress(fd, pending)):
                        return link
                self._drop_late()
                if time.monotonic() >= deadline:
                    return None
        raise LinkClosed(self.address, "the listener is closed")

    def close(self) -> None:
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
            with self._lock:
                for fd in list(self._pending):
                    self._forget(fd).frames.end(abrupt=True)
                for sock in self._listening.values():
                    sock.close()
                os.close(self._wake)

    def _admit(self, listening: socket.socket) -> None:
        try:
            sock, peer = listening.accept()
        except BlockingIOError:
            return
        except OSError as e:
            # Most likely out of descriptors. The connection stays in the backlog; let others end meanwhile.
            if (left_out := self._no_room.admit(time.monotonic())) is not None:
                _log.warning("a tensor link could not be accepted", problem=str(e), left_out=left_out)
            self._pause.poll(50)
            return
        name, carrier = "a process of this host", "unix"
        if listening.family != socket.AF_UNIX:
            tune(sock)
            name = join_host_port(*peer[:2])
            carrier = "tcp"
        if len(self._pending) >= MAX_PENDING:
            oldest = min(self._pending, key=lambda fd: self._pending[fd].deadline)
            self._drop(oldest, "too many unfinished handshakes")
        frames = FrameSocket(sock, name, max_header_bytes=HANDSHAKE_HEADER_BYTES, max_body_bytes=0)
        fd = frames.fileno()
        self._pending[fd] = _Pending(frames, time.monotonic() + self._handshake_timeout_s, carrier)
        self._poll.register(fd, select.POLLIN)

    def _progress(self, fd: int, pending: _Pending) -> StreamLink | None:
        frames = pending.frames
        try:
            hello, _body = frames.recv(0)
            answer = answer_hello(hello, self.identity, self._pool)
            frames.send(answer, ())
        except LinkTimeout:
            return None
        except (WireError, LinkError) as e:
            self._drop(fd, str(e))
            return None
        self._forget(fd)
        if isinstance(answer, Denied):
            self.refused += 1
            frames.end(abrupt=False)
            if (left_out := self._refusals.admit(time.monotonic())) is not None:
                problem = str(refusal(answer, self.identity))
                _log.warning("a tensor link was refused", peer=frames.peer, problem=problem, left_out=left_out)
            return None
        assert isinstance(hello, Hello)
        frames.peer = hello.instance_id
        frames.max_header_bytes, frames.max_body_bytes = MAX_HEADER_BYTES, MAX_BODY_BYTES
        return StreamLink(frames, self._pool.slot_bytes, self._pool.num_slots, pending.transport)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for fd in [fd for fd, pending in self._pending.items() if pending.deadline <= now]:
            self._drop(fd, f"no complete Hello within {self._handshake_timeout_s} s")

    def _drop(self, fd: int, why: str) -> None:
        frames = self._forget(fd).frames
        self.malformed += 1
        frames.end(abrupt=True)
        if (left_out := self._strangers.admit(time.monotonic())) is not None:
            _log.warning(
                "a connection that is no tensor link was dropped", peer=frames.peer, problem=why, left_out=left_out
            )

    def _forget(self, fd: int) -> _Pending:
        self._poll.unregister(fd)
        return self._pending.pop(fd)
