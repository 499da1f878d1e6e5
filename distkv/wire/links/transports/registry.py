"""All transports, and how one is chosen: by who listens where, and by what both ends of a link can use."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from distkv.errors import LinkClosed
from distkv.types import Transport
from distkv.wire.links.base import LinkListener, TensorLink
from distkv.wire.links.handshake import LinkIdentity
from distkv.wire.links.pool_memory import Pool
from distkv.wire.links.transports import inproc, shm, sockets
from distkv.wire.links.transports.offer import TransportUnusable
from distkv.wire.links.transports.socket_listener import SocketListener
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Hello

CONNECT: dict[str, Callable[[DataEndpoint, Hello, float], TensorLink]] = {
    "inproc": inproc.connect,
    "shm": shm.connect,
    "unix": sockets.connect_unix,
    "tcp": sockets.connect_tcp,
}
"""Ways to open a link within a timeout (s), fastest first: "auto" takes the first that both ends can use. Each raises
what `connect` does, and TransportUnusable where it cannot join these two processes."""

_log = structlog.get_logger("distkv.wire.links")


def listen(address: str, identity: LinkIdentity, pool: Pool, *, insecure: bool = False) -> LinkListener:
    """Accept links at "host:port" (port 0 is automatic) or, within this process, at "inproc://name".

    pool: what peers read from; the caller owns it and keeps it until all links are closed. The caller closes the
    listener. Raises ConfigError when the address cannot be used, or reaches beyond loopback without `insecure`.
    """
    if address.startswith(inproc.SCHEME):
        return inproc.listen(address, identity, pool)
    return SocketListener(address, identity, pool, insecure=insecure)


def connect(endpoint: DataEndpoint, hello: Hello, timeout_s: float, transport: Transport = "auto") -> TensorLink:
    """Open a link to the incarnation of a worker that `hello` expects. The caller closes it.

    transport: "auto" reads through shared memory when both are on one host and the peer's pool can be mapped (if not,
    the reason is logged, unless it lies on a GPU, and reads go over a socket); "shm" insists; "tcp" never maps.

    Raises LinkClosed (nobody there, or the transport cannot be used), LinkTimeout, HandshakeRefused naming the field
    that differs, MalformedMessage.
    """
    deadline = time.monotonic() + timeout_s
    why = ""
    for name in CONNECT if transport == "auto" else (transport,):
        try:
            return CONNECT[name](endpoint, hello, deadline - time.monotonic())
        except TransportUnusable as unusable:
            why = unusable.why
            if unusable.is_fault and transport == "auto":
                _log.warning("a transport cannot be used", peer=hello.expects_id, transport=name, why=why)
    raise LinkClosed(hello.expects_id, why)
