"""A pool known to UCX."""

from __future__ import annotations

from distkv.errors import ConfigError
from distkv.wire.links.memory.pool_memory import Pool
from distkv.wire.links.transports.one_sided.access import PoolOffer
from distkv.wire.links.transports.one_sided.pool import OneSidedPool
from distkv.wire.links.transports.one_sided.sealing import new_seal_key
from distkv.wire.links.transports.ucx import library
from distkv.wire.links.transports.ucx.access import UcxAccess
from distkv.wire.links.transports.ucx.library import UcxError
from distkv.wire.links.transports.ucx.owner import Owners
from distkv.wire.links.transports.ucx.reader import Reader
from distkv.wire.messages.common import DataEndpoint


class UcxPool(OneSidedPool[PoolOffer, UcxAccess]):
    """A Registration."""

    name, library = "ucx", "UCX"

    def __init__(self, pool: Pool) -> None:
        """Raises ImportError and UcxError as `library.load` does."""
        version = ".".join(map(str, library.load().version))
        super().__init__(pool.region, PoolOffer(version=version, seal_key=new_seal_key()), UcxAccess)
        self._owners = Owners(self.region)

    def reader(self, endpoint: DataEndpoint, offer: PoolOffer, access: UcxAccess, device: str) -> Reader:
        """See OneSidedPool."""
        return Reader(access, device)

    def access(self, device: str) -> UcxAccess:
        """See OneSidedPool."""
        return self._owners.access(device)

    def close(self) -> None:
        """See Registration."""
        self._owners.close()


def register(pool: Pool) -> UcxPool:
    """The pool, known to UCX. Raises ImportError where there is no UCX, ConfigError where it is too old."""
    try:
        return UcxPool(pool)
    except UcxError as error:
        raise ConfigError("tensor_transport", f"ucx cannot be used: {error.why}") from None
