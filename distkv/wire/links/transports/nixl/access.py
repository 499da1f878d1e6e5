"""What peers are told of a pool that NIXL serves: a little in the endpoint, the rest over a link, sealed.

NIXL trusts the bytes of metadata, and may crash over wrong ones. So the endpoint, which comes by way of the rManagers,
holds a random key, and what comes over the link counts only if it was sealed with that.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distkv.errors import MalformedMessage
from distkv.wire.links.transports.one_sided.sealing import open_sealed, seal
from distkv.wire.messages.common import Count, Value

MAX_METADATA_BYTES = 32 * 1024


class NixlOffer(Value, frozen=True):
    """Metadata of transport "nixl"."""

    version: str  #: of NIXL, major and minor; equal, or no link
    seal_key: Annotated[str, Meta(min_length=64, max_length=64)]  #: random, hexadecimal
    has_rdma: int = 0  #: 1 where NIXL may use an RDMA device


class NixlAccess(Value, frozen=True):
    """How to read one pool: from the agent whose metadata this is, bytes [address, address + num_bytes) of the memory
    of this kind of its process. device: the number of the GPU."""

    metadata: Annotated[bytes, Meta(min_length=1, max_length=MAX_METADATA_BYTES)]
    pid: Count
    address: Count
    num_bytes: Count
    memory: Literal["host", "cuda"]
    device: Count = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(NixlAccess).decode


def sealed_access(access: NixlAccess, offer: NixlOffer) -> bytes:
    """The body of `Attached`."""
    return seal(_encode(access), offer.seal_key)


def opened_access(sealed: bytes, offer: NixlOffer, num_bytes: int) -> NixlAccess:
    """What the owner of a pool of `num_bytes` said. Raises MalformedMessage if it did not."""
    try:
        access = _decode(open_sealed(sealed, offer.seal_key))
    except msgspec.MsgspecError as error:
        raise MalformedMessage(f"the access to a pool by NIXL: {error}") from None
    if access.num_bytes != num_bytes or access.address < 1 or access.address + num_bytes >= 2**64:
        raise MalformedMessage(f"the access to a pool of {num_bytes} bytes is for {access.num_bytes}")
    return access
