"""A pool known to NIXL."""

from __future__ import annotations

import os

from distkv.errors import ConfigError
from distkv.wire.links.pool_memory import Pool
from distkv.wire.links.transports.nixl import bindings
from distkv.wire.links.transports.nixl.access import NixlAccess, NixlOffer
from distkv.wire.links.transports.nixl.agent import Agent
from distkv.wire.links.transports.nixl.bindings import NixlError
from distkv.wire.links.transports.nixl.reading import Reader
from distkv.wire.links.transports.nixl.serving import ServingAgents
from distkv.wire.links.transports.one_sided.pool import OneSidedPool
from distkv.wire.links.transports.one_sided.reach import Process, has_rdma, why_unreachable
from distkv.wire.links.transports.one_sided.sealing import new_seal_key
from distkv.wire.messages.common import DataEndpoint


class NixlPool(OneSidedPool[NixlOffer, NixlAccess]):
    """A Registration."""

    name, library = "nixl", "NIXL"

    def __init__(self, pool: Pool) -> None:
        """Raises NixlError where NIXL does not work."""
        offer = NixlOffer(version=bindings.version, seal_key=new_seal_key(), has_rdma=int(has_rdma()))
        super().__init__(offer, NixlAccess)
        self._region = pool.region
        # The first agent of a process takes half a second, for its libraries: no peer is to wait for that. Memory that
        # NIXL cannot read is noticed here, too.
        first = Agent("", has_thread=False)
        first.register(self._region)
        first.close()
        # What comes here comes by way of main memory, if the pool is on a GPU.
        self._own = self._region if self._region.memory == "host" else None
        self._serving = ServingAgents(self._region)

    def reader(self, endpoint: DataEndpoint, offer: NixlOffer, access: NixlAccess, device: str) -> Reader:
        """See OneSidedPool."""
        process = Process(host_key=endpoint.host_key, pid=access.pid, has_rdma=bool(offer.has_rdma))
        if why := why_unreachable(process, access.address if access.memory == "host" else None):
            raise NixlError(why)
        return Reader(access, device, self._own)

    def access(self, device: str) -> NixlAccess:
        """See OneSidedPool."""
        region = self._region
        return NixlAccess(
            metadata=self._serving.metadata(device),
            pid=os.getpid(),
            address=region.address,
            num_bytes=region.num_bytes,
            memory=region.memory,
            device=region.device,
        )

    def close(self) -> None:
        """See Registration."""
        self._serving.close()


def register(pool: Pool) -> NixlPool:
    """The pool, known to NIXL. Raises ConfigError where it does not work."""
    try:
        return NixlPool(pool)
    except NixlError as error:
        raise ConfigError("tensor_transport", f"nixl cannot be used: {error.why}") from None
