"""A pool known to NIXL: what its process offers to peers, and how it reads theirs."""

from __future__ import annotations

import os
import time

import structlog

from distkv.errors import ConfigError, LinkClosed, LinkError, MalformedMessage
from distkv.wire.links.base import TensorLink
from distkv.wire.links.pool_memory import Pool
from distkv.wire.links.registration import ask_to_attach
from distkv.wire.links.transports.nixl import bindings
from distkv.wire.links.transports.nixl.access import NixlAccess, NixlOffer, opened_access, sealed_access
from distkv.wire.links.transports.nixl.agent import Agent
from distkv.wire.links.transports.nixl.bindings import NixlError
from distkv.wire.links.transports.nixl.link import NixlLink
from distkv.wire.links.transports.nixl.reading import Reader
from distkv.wire.links.transports.nixl.serving import ServingAgents
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.links.transports.one_sided.devices import device_of
from distkv.wire.links.transports.one_sided.reach import Process, has_rdma, why_unreachable
from distkv.wire.links.transports.one_sided.sealing import new_seal_key
from distkv.wire.links.transports.sockets import greet, open_tcp, open_unix
from distkv.wire.links.transports.stream_link import StreamLink
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Hello

NAME = "nixl"
_PROBE_BYTES = 4096

_log = structlog.get_logger("distkv.wire.links")


class NixlPool:
    """A Registration. offer: what stands in the endpoint."""

    def __init__(self, pool: Pool) -> None:
        """Raises NixlError where NIXL does not work."""
        self._region = pool.region
        # The first agent of a process takes half a second, for its libraries: no peer is to wait for that. Memory that
        # NIXL cannot read is noticed here, too.
        first = Agent("", has_thread=False)
        first.register(self._region)
        first.close()
        # What comes here comes by way of main memory, if the pool is on a GPU.
        self._own = self._region if self._region.memory == "host" else None
        self._serving = ServingAgents(self._region)
        self.offer = NixlOffer(version=bindings.version, seal_key=new_seal_key(), has_rdma=int(has_rdma()))

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> NixlLink:
        """A link that reads by NIXL, which it has done once: what cannot connect is found here, not by a step."""
        deadline = time.monotonic() + timeout_s
        offer = offered(endpoint, NAME, NixlOffer)
        if offer is None:
            raise TransportUnusable("the peer does not offer NIXL")
        if offer.version != bindings.version:
            raise TransportUnusable(f"the peer has NIXL {offer.version}, here is {bindings.version}")
        sock = open_unix(endpoint) or open_tcp(endpoint, hello.expects_id, timeout_s)
        frames, welcome = greet(sock, endpoint, hello, deadline - time.monotonic())
        slot_bytes, num_slots = welcome.slot_bytes, welcome.num_slots
        try:
            plain = StreamLink(frames, slot_bytes, num_slots, NAME)
            told = bytes(ask_to_attach(plain, NAME, b"", deadline - time.monotonic()))
            access = opened_access(told, offer, slot_bytes * num_slots)
            process = Process(host_key=endpoint.host_key, pid=access.pid, has_rdma=bool(offer.has_rdma))
            if why := why_unreachable(process, access.address if access.memory == "host" else None):
                raise NixlError(why)
            reader = Reader(access, device_of(frames.local_host), self._own)
        except (NixlError, ValueError, LinkClosed) as error:
            frames.end(abrupt=True)
            raise TransportUnusable(_why(error), is_fault=True) from None
        except BaseException:
            frames.end(abrupt=True)
            raise
        link = NixlLink(frames, slot_bytes, num_slots, reader)
        try:
            probe = memoryview(bytearray(min(_PROBE_BYTES, slot_bytes)))
            link.read([0], [probe], deadline - time.monotonic(), (0, len(probe)))
        except LinkError as error:
            link.abort()
            raise TransportUnusable(f"a first read failed: {_why(error)}", is_fault=True) from None
        except BaseException:
            link.abort()
            raise
        return link

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        """See Registration. Raises LinkClosed where NIXL cannot serve the pool to this peer."""
        if len(body):
            raise MalformedMessage("NIXL needs to know nothing of who reads")
        assert isinstance(link, StreamLink)
        region = self._region
        try:
            metadata = self._serving.metadata(device_of(link.local_host))
        except (NixlError, ValueError) as error:
            _log.warning("a transport cannot be used", peer=link.peer, transport=NAME, why=_why(error))
            raise LinkClosed(link.peer, _why(error)) from None
        access = NixlAccess(
            metadata=metadata,
            pid=os.getpid(),
            address=region.address,
            num_bytes=region.num_bytes,
            memory=region.memory,
            device=region.device,
        )
        return sealed_access(access, self.offer)

    def detach(self, link: TensorLink) -> None:
        """See Registration: nothing is kept of a link."""

    def close(self) -> None:
        """See Registration."""
        self._serving.close()


def register(pool: Pool) -> NixlPool:
    """The pool, known to NIXL. Raises ConfigError where it does not work."""
    try:
        return NixlPool(pool)
    except NixlError as error:
        raise ConfigError("tensor_transport", f"nixl cannot be used: {error.why}") from None


def _why(error: Exception) -> str:
    return error.why if isinstance(error, NixlError | LinkClosed) else str(error)
