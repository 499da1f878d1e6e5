"""What peers are told of a pool that UCX serves."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from distkv.wire.links.transports.one_sided.access import PoolAccess

OpaqueBytes = Annotated[bytes, Meta(min_length=1, max_length=24 * 1024)]


class UcxAccess(PoolAccess, frozen=True):
    """From the worker at `worker`, by the key `rkey`."""

    worker: OpaqueBytes
    rkey: OpaqueBytes
