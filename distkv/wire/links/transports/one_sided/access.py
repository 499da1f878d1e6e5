"""What peers are told of a pool that a library serves: a little in the endpoint, the rest over a link, sealed.

Libraries trust the bytes of addresses, keys and metadata, and crash over wrong ones. So the endpoint, which comes by
way of the rManagers, holds a random key, and what comes over the link counts only if it was sealed with that: it is
then whole, and of the incarnation that the endpoint is about.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from distkv.errors import MalformedMessage
from distkv.wire.links.transports.one_sided.sealing import open_sealed, seal
from distkv.wire.messages.common import Count, Value


class PoolOffer(Value, frozen=True):
    """Metadata of such a transport."""

    version: str  #: of the library, major and minor; equal, or no link
    seal_key: Annotated[str, Meta(min_length=64, max_length=64)]  #: random, hexadecimal


class PoolAccess(Value, frozen=True):
    """How to read one pool: bytes [address, address + num_bytes) of its process's memory of this kind."""

    address: Count
    num_bytes: Count
    memory: Literal["host", "cuda"]


Access = TypeVar("Access", bound=PoolAccess)

_encode = msgspec.msgpack.Encoder().encode


def sealed_access(access: PoolAccess, offer: PoolOffer) -> bytes:
    """The body of `Attached`."""
    return seal(_encode(access), offer.seal_key)


def opened_access(kind: type[Access], sealed: bytes, offer: PoolOffer, num_bytes: int) -> Access:
    """What the owner of a pool of `num_bytes` said. Raises MalformedMessage if it did not."""
    try:
        access = msgspec.msgpack.decode(open_sealed(sealed, offer.seal_key), type=kind)
    except msgspec.MsgspecError as error:
        raise MalformedMessage(f"the access to a pool: {error}") from None
    if access.num_bytes != num_bytes or access.address < 1 or access.address + num_bytes >= 2**64:
        raise MalformedMessage(f"the access to a pool of {num_bytes} bytes is for {access.num_bytes}")
    return access
