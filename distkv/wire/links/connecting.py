"""Opening tensor links: one way to listen, one way to connect, whatever carries the bytes."""

from __future__ import annotations

import socket
import time

import structlog

from distkv.errors import ConfigError, LinkClosed, LinkTimeout
from distkv.types import Transport
from distkv.wire.address import split_host_port
from distkv.wire.links.base import MAX_BODY_BYTES, MAX_HEADER_BYTES, LinkListener, TensorLink
from distkv.wire.links.frames import FrameSocket
from distkv.wire.links.handshake import HANDSHAKE_HEADER_BYTES, LinkIdentity, check_answer
from distkv.wire.links.inproc import InprocListener, connect_inproc, is_inproc
from distkv.wire.links.listener import SocketListener, tune
from distkv.wire.links.pool_memory import PeerPool, Pool, PoolMemory, PoolUnmappable, host_key
from distkv.wire.links.shm import ShmLink
from distkv.wire.links.tcp import StreamLink
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Hello

_log = structlog.get_logger("distkv.wire.links")


def listen(address: str, identity: LinkIdentity, pool: Pool, *, insecure: bool = False) -> LinkListener:
    """Accept links at "host:port" (port 0 is automatic) or, within this process, at "inproc://name".

    pool: what peers read from; the caller owns it and keeps it until all links are closed. The caller closes the
    listener. Raises ConfigError when the address cannot be used, or reaches beyond loopback without `insecure`.
    """
    if is_inproc(address):
        if not isinstance(pool, PoolMemory):
            raise ConfigError("address", f"{address} is for pools in main memory", "listen at host:port")
        return InprocListener(address, identity, pool)
    return SocketListener(address, identity, pool, insecure=insecure)


def connect(endpoint: DataEndpoint, hello: Hello, timeout_s: float, transport: Transport = "auto") -> TensorLink:
    """Open a link to the life of a worker that `hello` expects. The caller closes it.

    transport: "auto" reads through shared memory when both are on one host and the peer's pool can be mapped (if not,
    the reason is logged, unless it lies on a GPU, and reads go over the socket); "shm" insists; "tcp" never maps.

    Raises LinkClosed (nobody there, or with "shm": not mappable), LinkTimeout, HandshakeRefused naming the field that
    differs, MalformedMessage.
    """
    if is_inproc(endpoint.address):
        return connect_inproc(endpoint, hello)
    deadline = time.monotonic() + timeout_s
    frames = FrameSocket(
        _open_local(endpoint, transport) or _open(endpoint.address, hello.expects_id, timeout_s),
        hello.expects_id,
        max_header_bytes=HANDSHAKE_HEADER_BYTES,
        max_body_bytes=0,
    )
    try:
        frames.send(hello, ())
        answer, _body = frames.recv(deadline - time.monotonic())
        welcome = check_answer(answer, hello, endpoint)
        frames.max_header_bytes, frames.max_body_bytes = MAX_HEADER_BYTES, MAX_BODY_BYTES
        pool = None if transport == "tcp" else _map(endpoint, welcome.pool_token, hello.expects_id, transport)
        if pool is not None:
            return ShmLink(frames, pool)
        return StreamLink(frames, welcome.slot_bytes, welcome.num_slots)
    except LinkTimeout:
        frames.end(abrupt=True)
        raise LinkTimeout(hello.expects_id, timeout_s) from None
    except BaseException:
        frames.end(abrupt=True)
        raise


def _open_local(endpoint: DataEndpoint, transport: Transport) -> socket.socket | None:
    if transport == "tcp" or not endpoint.local or endpoint.host_key != host_key():
        return None
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(f"\0{endpoint.local}")
    except OSError:
        # Another network namespace, a full backlog, or nobody: the other address will tell.
        sock.close()
        return None
    return sock


def _open(address: str, peer: str, timeout_s: float) -> socket.socket:
    try:
        host, port = split_host_port(address)
    except ConfigError as e:
        raise LinkClosed(peer, str(e)) from None
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
    except TimeoutError:
        raise LinkTimeout(peer, timeout_s) from None
    except OSError as e:
        raise LinkClosed(peer, f"cannot reach {address}: {e.strerror or e}") from None
    tune(sock)
    return sock


def _map(endpoint: DataEndpoint, token: str, peer: str, transport: Transport) -> PeerPool | None:
    try:
        if endpoint.host_key != host_key():
            raise PoolUnmappable("the peer is on another host, or belongs to another user or process namespace")
        if not token:
            raise PoolUnmappable("it lies in the memory of a GPU")
        return PeerPool(endpoint, token)
    except PoolUnmappable as e:
        if transport == "shm":
            raise LinkClosed(peer, str(e)) from None
        if token and endpoint.host_key == host_key():
            _log.warning("blocks are read over TCP", peer=peer, why=e.why)
        return None
