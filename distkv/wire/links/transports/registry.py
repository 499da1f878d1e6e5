"""All transports, and how one is chosen: by who listens where, and by what both ends of a link can use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog

from distkv.errors import ConfigError, LinkClosed
from distkv.types import Transport
from distkv.wire.links.base import LinkListener, TensorLink
from distkv.wire.links.handshake import LinkIdentity
from distkv.wire.links.memory.pool_memory import Pool
from distkv.wire.links.registration import Registration, Registrations
from distkv.wire.links.transports import inproc, shm, sockets
from distkv.wire.links.transports.offer import TransportUnusable
from distkv.wire.links.transports.optional import Optional
from distkv.wire.links.transports.socket_listener import SocketListener
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Hello

CONNECT: dict[str, Callable[[DataEndpoint, Hello, float], TensorLink]] = {
    "inproc": inproc.connect,
    "shm": shm.connect,
    "unix": sockets.connect_unix,
    "tcp": sockets.connect_tcp,
}
"""Ways to open a link within a timeout (s) that need no more than Python. Each raises what `connect` does, and
TransportUnusable where it cannot join these two processes."""

OPTIONAL: dict[str, Optional] = {
    "ucx": Optional("ucx", "distkv.wire.links.transports.ucx.pool", "ucx"),
    "nixl": Optional("nixl", "distkv.wire.links.transports.nixl.pool", "nixl"),
}
"""Those that need a package, and the pool registered. Each is a module of this room with `register(pool)`, which
returns a Registration and raises TransportUnusable; it is imported only where it is to be used."""

ORDER = ("inproc", "shm", "cuda_ipc", *OPTIONAL, "unix", "tcp")
"""Fastest first: "auto" takes the first that both ends can use. "cuda_ipc" is registered by who has a GPU's memory to
share."""

NONE_REGISTERED: Registrations = MappingProxyType({})

_log = structlog.get_logger("distkv.wire.links")


def register(pool: Pool, transport: Transport = "auto") -> dict[str, Registration]:
    """The pool, known to the transports that this process is to use and that must be told of it. The caller closes
    them when no link lives any more.

    "auto" takes those whose packages are installed, and only for a pool that peers on this host cannot map: one on a
    GPU. Raises ConfigError when the one that is insisted on cannot be had.
    """
    if transport in OPTIONAL:
        try:
            return {transport: OPTIONAL[transport].register(pool)}
        except TransportUnusable as unusable:
            raise ConfigError("tensor_transport", unusable.why) from None
    registered: dict[str, Registration] = {}
    if transport == "auto" and pool.mappable is None:
        for name, optional in OPTIONAL.items():
            try:
                registered[name] = optional.register(pool)
            except (ConfigError, TransportUnusable) as error:
                _log.info("a transport is not used", transport=name, why=str(error))
    return registered


def listen(
    address: str,
    identity: LinkIdentity,
    pool: Pool,
    *,
    insecure: bool = False,
    registered: Registrations = NONE_REGISTERED,
) -> LinkListener:
    """Accept links at "host:port" (port 0 is automatic) or, within this process, at "inproc://name".

    pool: what peers read from; the caller owns it and keeps it until all links are closed. registered: what else it is
    offered by. The caller closes the listener. Raises ConfigError when the address cannot be used, or reaches beyond
    loopback without `insecure`.
    """
    if address.startswith(inproc.SCHEME):
        return inproc.listen(address, identity, pool)
    return SocketListener(address, identity, pool, insecure=insecure, registered=registered)


def connect(
    endpoint: DataEndpoint,
    hello: Hello,
    timeout_s: float,
    transport: Transport = "auto",
    registered: Registrations = NONE_REGISTERED,
) -> TensorLink:
    """Open a link to the incarnation of a worker that `hello` expects. The caller closes it.

    transport: "auto" takes the first of `ORDER` that both ends have, and logs which and why: on one host it reads
    through shared memory if the peer's pool can be mapped. Any other is insisted on. registered: this process's pool,
    where what the transports in question read may arrive.

    Raises LinkClosed (nobody there, or the transport cannot be used), LinkTimeout, HandshakeRefused naming the field
    that differs, MalformedMessage.
    """
    deadline = time.monotonic() + timeout_s
    passed_over: dict[str, str] = {}
    for name in ORDER if transport == "auto" else (transport,):
        try:
            link = _connect(name, registered)(endpoint, hello, deadline - time.monotonic())
        except TransportUnusable as unusable:
            passed_over[name] = unusable.why
            if unusable.is_fault and transport == "auto":
                _log.warning("a transport cannot be used", peer=hello.expects_id, transport=name, why=unusable.why)
        else:
            if transport == "auto":
                _log.info("a transport was chosen", peer=hello.expects_id, transport=name, not_used=passed_over)
            return link
    raise LinkClosed(hello.expects_id, passed_over.popitem()[1])


def _connect(name: str, registered: Mapping[str, Registration]) -> Callable[[DataEndpoint, Hello, float], TensorLink]:
    """Raises TransportUnusable."""
    if name in CONNECT:
        return CONNECT[name]
    if name not in registered:
        raise TransportUnusable(f"the own pool is not registered with {name}")
    return registered[name].connect
