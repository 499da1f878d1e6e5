"""What peers are told of a pool that NIXL serves."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from distkv.wire.links.transports.one_sided.access import PoolAccess, PoolOffer
from distkv.wire.messages.common import Count

MAX_METADATA_BYTES = 32 * 1024


class NixlOffer(PoolOffer, frozen=True):
    """Metadata of transport "nixl"."""

    has_rdma: int = 0  #: 1 where NIXL may use an RDMA device


class NixlAccess(PoolAccess, frozen=True):
    """From the agent whose metadata this is, in the process `pid`. device: the number of the GPU."""

    metadata: Annotated[bytes, Meta(min_length=1, max_length=MAX_METADATA_BYTES)]
    pid: Count
    device: Count = 0
