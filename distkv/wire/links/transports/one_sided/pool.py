"""A pool known to a library that reads: what its process offers to peers, and how it reads theirs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from distkv.errors import LinkClosed, LinkError, MalformedMessage
from distkv.wire.links.base import TensorLink
from distkv.wire.links.memory.pool_memory import PoolRegion
from distkv.wire.links.registration import ask_to_attach
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.links.transports.one_sided.access import (
    Access,
    PoolAccess,
    PoolOffer,
    opened_access,
    sealed_access,
)
from distkv.wire.links.transports.one_sided.devices import device_of
from distkv.wire.links.transports.one_sided.errors import OneSidedError
from distkv.wire.links.transports.one_sided.link import OneSidedLink, Reader
from distkv.wire.links.transports.one_sided.reach import lands_on_gpu
from distkv.wire.links.transports.sockets import greet, open_tcp, open_unix
from distkv.wire.links.transports.stream_link import StreamLink
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Hello

_PROBE_BYTES = 4096

_log = structlog.get_logger("distkv.wire.links")

Offer = TypeVar("Offer", bound=PoolOffer)


class OneSidedPool(ABC, Generic[Offer, Access]):
    """A Registration. name: of the transport; library: for sentences. offer: what stands in the endpoint."""

    name: ClassVar[str]
    library: ClassVar[str]

    def __init__(self, region: PoolRegion, offer: Offer, access: type[Access]) -> None:
        """region: of the own pool."""
        self.offer, self.region = offer, region
        self._access = access

    def destination(self, endpoint: DataEndpoint) -> PoolRegion | None:
        """The own pool, if it lies on a GPU and what is read from this peer arrives there."""
        return self.region if lands_on_gpu(self.region, endpoint.host_key) else None

    @abstractmethod
    def reader(self, endpoint: DataEndpoint, offer: Offer, access: Access, device: str) -> Reader[Any]:
        """Begins to connect to a pool, by this network device. Raises OneSidedError."""

    @abstractmethod
    def access(self, device: str) -> PoolAccess:
        """For a peer that comes by this network device. Raises OneSidedError."""

    @abstractmethod
    def close(self) -> None:
        """See Registration."""

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> OneSidedLink[Any]:
        """A link that has read once: what cannot connect is found here, not by a step."""
        deadline = time.monotonic() + timeout_s
        offer = offered(endpoint, self.name, type(self.offer))
        if offer is None:
            raise TransportUnusable(f"the peer does not offer {self.library}")
        if offer.version != self.offer.version:
            raise TransportUnusable(f"the peer has {self.library} {offer.version}, here is {self.offer.version}")
        sock = open_unix(endpoint) or open_tcp(endpoint, hello.expects_id, timeout_s)
        frames, welcome = greet(sock, endpoint, hello, deadline - time.monotonic())
        slot_bytes, num_slots = welcome.slot_bytes, welcome.num_slots
        try:
            plain = StreamLink(frames, slot_bytes, num_slots, self.name)
            told = bytes(ask_to_attach(plain, self.name, b"", deadline - time.monotonic()))
            access = opened_access(self._access, told, offer, slot_bytes * num_slots)
            reader = self.reader(endpoint, offer, access, device_of(frames.local_host))
        except (OneSidedError, ValueError, LinkClosed, OSError) as error:
            frames.end(abrupt=True)
            raise TransportUnusable(_why(error), is_fault=True) from None
        except BaseException:
            frames.end(abrupt=True)
            raise
        own = self.destination(endpoint)
        link = OneSidedLink(frames, slot_bytes, num_slots, self.name, reader, own)
        try:
            probe = memoryview(bytearray(min(_PROBE_BYTES, slot_bytes)))
            link.read([0], [probe], deadline - time.monotonic(), (0, len(probe)))
        except LinkError as error:
            link.abort()
            raise TransportUnusable(
                f"{self.library} reads nothing one-sidedly between these two: a first read failed: {_why(error)}",
                is_fault=True,
            ) from None
        except BaseException:
            link.abort()
            raise
        if own is not None:
            _log.info("blocks arrive on the GPU", peer=hello.expects_id, transport=self.name)
        return link

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        """See Registration. Raises LinkClosed where the library cannot serve the pool to this peer."""
        if len(body):
            raise MalformedMessage(f"{self.library} needs to know nothing of who reads")
        assert isinstance(link, StreamLink)
        try:
            return sealed_access(self.access(device_of(link.local_host)), self.offer)
        except (OneSidedError, ValueError, OSError) as error:
            _log.warning("a transport cannot be used", peer=link.peer, transport=self.name, why=_why(error))
            raise LinkClosed(link.peer, _why(error)) from None

    def detach(self, link: TensorLink) -> None:
        """See Registration: nothing is kept of a link."""


def _why(error: Exception) -> str:
    return error.why if isinstance(error, OneSidedError | LinkClosed) else str(error)
