"""Tensor links between workers: blocking, one thread at each end. Start with `base` for the contract."""

from distkv.types import Transport
from distkv.wire.links.base import BlockRead, CheckedRead, CheckingLink, LinkListener, PlacingLink, TensorLink
from distkv.wire.links.block_reads import deny, serve_read
from distkv.wire.links.handshake import LinkIdentity, hello_to
from distkv.wire.links.memory.pool_memory import ChecksummingPool, Part, Pool, PoolMemory, PoolRegion, host_key
from distkv.wire.links.registration import Registration, Registrations, ask_to_attach, attach
from distkv.wire.links.transports.registry import connect, listen, register

__all__ = [
    "BlockRead",
    "CheckedRead",
    "CheckingLink",
    "ChecksummingPool",
    "LinkIdentity",
    "LinkListener",
    "Part",
    "PlacingLink",
    "Pool",
    "PoolMemory",
    "PoolRegion",
    "Registration",
    "Registrations",
    "TensorLink",
    "Transport",
    "ask_to_attach",
    "attach",
    "connect",
    "deny",
    "hello_to",
    "host_key",
    "listen",
    "register",
    "serve_read",
]
