"""What peers are told of a pool that UCX serves: a little in the endpoint, the rest over a link, sealed.

UCX trusts the bytes of addresses and keys, and crashes over wrong ones. So the endpoint, which comes by way of the
rManagers, holds a random key, and what comes over the link counts only if it was sealed with that: it is then whole,
and of the incarnation that the endpoint is about.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distkv.errors import MalformedMessage
from distkv.wire.links.transports.one_sided.sealing import open_sealed, seal
from distkv.wire.messages.common import Count, Value

OpaqueBytes = Annotated[bytes, Meta(min_length=1, max_length=24 * 1024)]


class UcxOffer(Value, frozen=True):
    """Metadata of transport "ucx"."""

    version: str  #: of UCX, major and minor; equal, or no link
    seal_key: Annotated[str, Meta(min_length=64, max_length=64)]  #: random, hexadecimal


class UcxAccess(Value, frozen=True):
    """How to read one pool: from the worker at `worker`, by the key `rkey`, bytes [address, address + num_bytes) of its
    memory of this kind."""

    worker: OpaqueBytes
    rkey: OpaqueBytes
    address: Count
    num_bytes: Count
    memory: Literal["host", "cuda"]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UcxAccess).decode


def sealed_access(access: UcxAccess, offer: UcxOffer) -> bytes:
    """The body of `Attached`."""
    return seal(_encode(access), offer.seal_key)


def opened_access(sealed: bytes, offer: UcxOffer, num_bytes: int) -> UcxAccess:
    """What the owner of a pool of `num_bytes` said. Raises MalformedMessage if it did not."""
    try:
        access = _decode(open_sealed(sealed, offer.seal_key))
    except msgspec.MsgspecError as error:
        raise MalformedMessage(f"the access to a pool by UCX: {error}") from None
    if access.num_bytes != num_bytes or access.address < 1 or access.address + num_bytes >= 2**64:
        raise MalformedMessage(f"the access to a pool of {num_bytes} bytes is for {access.num_bytes}")
    return access
