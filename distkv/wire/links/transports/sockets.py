"""Tensor links over stream sockets: TCP for all, a Unix socket within a host."""

from __future__ import annotations

import socket
import time

from distkv.errors import ConfigError, LinkClosed, LinkTimeout
from distkv.wire.address import split_host_port
from distkv.wire.links.base import MAX_BODY_BYTES, MAX_HEADER_BYTES
from distkv.wire.links.handshake import HANDSHAKE_HEADER_BYTES, check_answer
from distkv.wire.links.memory.pool_memory import host_key
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.links.transports.stream_link import SocketLink
from distkv.wire.look_up import look_up
from distkv.wire.messages.common import DataEndpoint, Value
from distkv.wire.messages.data import Hello, Welcome


class UnixSocket(Value, frozen=True):
    """Metadata of transport "unix". name: of the abstract socket, without the leading zero byte."""

    name: str


def connect_tcp(endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> SocketLink:
    """A link over TCP; see registry.CONNECT."""
    return _link(open_tcp(endpoint, hello.expects_id, timeout_s), endpoint, hello, timeout_s, "tcp")


def connect_unix(endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> SocketLink:
    """A link over the peer's Unix socket; see registry.CONNECT."""
    sock = open_unix(endpoint)
    if sock is None:
        raise TransportUnusable("the peer's Unix socket cannot be reached")
    return _link(sock, endpoint, hello, timeout_s, "unix")


def open_unix(endpoint: DataEndpoint) -> socket.socket | None:
    """The peer's Unix socket; None where it has none here: another host or network namespace, or a full backlog; also
    without a descriptor for it."""
    unix = offered(endpoint, "unix", UnixSocket)
    if unix is None or endpoint.host_key != host_key():
        return None
    try:
        sock = socket.socket(socket.AF_UNIX)
    except OSError:
        return None
    sock.setblocking(False)
    try:
        sock.connect(f"\0{unix.name}")
    except (OSError, ValueError):
        sock.close()
        return None
    return sock


def open_tcp(endpoint: DataEndpoint, peer: str, timeout_s: float) -> socket.socket:
    """A TCP connection to the peer's listener, after `timeout_s` at most, also where its name is long looked up. Raises
    LinkClosed, LinkTimeout."""
    deadline_s = time.monotonic() + timeout_s
    try:
        host, port = split_host_port(endpoint.address)
    except ConfigError as e:
        raise LinkClosed(peer, str(e)) from None
    try:
        sock = _connected(look_up(host, timeout_s), port, deadline_s)
    except TimeoutError:
        raise LinkTimeout(peer, timeout_s) from None
    except OSError as e:
        raise LinkClosed(peer, f"cannot reach {endpoint.address}: {e.strerror or e}") from None
    except ValueError as e:
        raise LinkClosed(peer, f"{endpoint.address[:100]!r} is no address: {e}") from None
    tune(sock)
    return sock


def _connected(hosts: list[str], port: int, deadline_s: float) -> socket.socket:
    """With the first of them that can be reached; each has its share of the time that is left. Raises OSError, of which
    TimeoutError is one."""
    failure = OSError("it has no address")
    for index, host in enumerate(hosts):
        share_s = (deadline_s - time.monotonic()) / (len(hosts) - index)
        try:
            return socket.create_connection((host, port), timeout=max(share_s, 0.001))
        except OSError as error:
            failure = error
    raise failure


def tune(sock: socket.socket) -> None:
    """Options of every tensor link over TCP: no delay, and a silent peer is noticed within seconds."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def greet(sock: socket.socket, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> tuple[FrameSocket, Welcome]:
    """The connecting end's handshake on a fresh connection, which it owns from here on.

    Raises LinkClosed, LinkTimeout, HandshakeRefused, MalformedMessage; the connection is closed then.
    """
    deadline = time.monotonic() + timeout_s
    frames = FrameSocket(sock, hello.expects_id, max_header_bytes=HANDSHAKE_HEADER_BYTES, max_body_bytes=0, asks=True)
    try:
        frames.send(hello, ())
        answer, _body = frames.recv(deadline - time.monotonic())
        welcome = check_answer(answer, hello, endpoint)
    except LinkTimeout:
        frames.end(abrupt=True)
        raise LinkTimeout(hello.expects_id, timeout_s) from None
    except BaseException:
        frames.end(abrupt=True)
        raise
    frames.max_header_bytes, frames.max_body_bytes = MAX_HEADER_BYTES, MAX_BODY_BYTES
    return frames, welcome


def _link(sock: socket.socket, endpoint: DataEndpoint, hello: Hello, timeout_s: float, transport: str) -> SocketLink:
    frames, welcome = greet(sock, endpoint, hello, timeout_s)
    return SocketLink(frames, welcome.slot_bytes, welcome.num_slots, transport)
