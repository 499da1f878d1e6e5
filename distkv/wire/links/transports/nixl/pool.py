"""A pool known to NIXL."""

from __future__ import annotations

import os

from distkv.errors import ConfigError
from distkv.wire.links.memory.pool_memory import Pool
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
        super().__init__(pool.region, offer, NixlAccess)
        # The first agent of a process takes half a second, for its libraries: no peer is to wait for that. Memory that
        # NIXL cannot read is noticed here, too.
        first = Agent("", has_thread=False)
        first.register(self.region)
        first.close()
        self._serving = ServingAgents(self.region)

    def reader(self, endpoint: DataEndpoint, offer: NixlOffer, access: NixlAccess, device: str) -> Reader:
        """See OneSidedPool."""
        process = Process(host_key=endpoint.host_key, pid=access.pid, has_rdma=bool(offer.has_rdma))
        if why := why_unreachable(process, access.address if access.memory == "host" else None):
            raise NixlError(why)
        # Else what comes to a pool on a GPU comes by way of main memory.
        own = self.region if self.region.memory == "host" else self.destination(endpoint)
        return Reader(access, device, own)

    def access(self, device: str) -> NixlAccess:
        """See OneSidedPool."""
        region = self.region
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
