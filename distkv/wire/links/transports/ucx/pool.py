"""A pool known to UCX: what its process offers to peers, and how it reads theirs."""

from __future__ import annotations

import time

import structlog

from distkv.errors import ConfigError, LinkClosed, LinkError, MalformedMessage
from distkv.wire.links.base import TensorLink
from distkv.wire.links.pool_memory import Pool
from distkv.wire.links.registration import ask_to_attach
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.links.transports.one_sided.devices import device_of
from distkv.wire.links.transports.one_sided.sealing import new_seal_key
from distkv.wire.links.transports.sockets import greet, open_tcp, open_unix
from distkv.wire.links.transports.stream_link import StreamLink
from distkv.wire.links.transports.ucx import library
from distkv.wire.links.transports.ucx.access import UcxOffer, opened_access, sealed_access
from distkv.wire.links.transports.ucx.library import UcxError
from distkv.wire.links.transports.ucx.link import UcxLink
from distkv.wire.links.transports.ucx.owner import Owners
from distkv.wire.links.transports.ucx.reader import Reader
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Hello

NAME = "ucx"
_PROBE_BYTES = 4096

_log = structlog.get_logger("distkv.wire.links")


class UcxPool:
    """A Registration. offer: what stands in the endpoint."""

    def __init__(self, pool: Pool) -> None:
        """Raises ImportError and UcxError as `library.load` does."""
        self._version = ".".join(map(str, library.load().version))
        self._owners = Owners(pool.region)
        self.offer = UcxOffer(version=self._version, seal_key=new_seal_key())

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> UcxLink:
        """A link that reads by UCX, which it has done once: what cannot connect is found here, not by a step."""
        deadline = time.monotonic() + timeout_s
        offer = offered(endpoint, NAME, UcxOffer)
        if offer is None:
            raise TransportUnusable("the peer does not offer UCX")
        if offer.version != self._version:
            raise TransportUnusable(f"the peer has UCX {offer.version}, here is {self._version}")
        sock = open_unix(endpoint) or open_tcp(endpoint, hello.expects_id, timeout_s)
        frames, welcome = greet(sock, endpoint, hello, deadline - time.monotonic())
        slot_bytes, num_slots = welcome.slot_bytes, welcome.num_slots
        try:
            plain = StreamLink(frames, slot_bytes, num_slots, NAME)
            told = bytes(ask_to_attach(plain, NAME, b"", deadline - time.monotonic()))
            access = opened_access(told, offer, slot_bytes * num_slots)
            reader = Reader(access, device_of(frames.local_host))
        except (UcxError, ValueError, LinkClosed) as error:
            frames.end(abrupt=True)
            raise TransportUnusable(_why(error), is_fault=True) from None
        except BaseException:
            frames.end(abrupt=True)
            raise
        link = UcxLink(frames, slot_bytes, num_slots, reader)
        try:
            probe = memoryview(bytearray(min(_PROBE_BYTES, slot_bytes)))
            link.read([0], [probe], deadline - time.monotonic(), (0, len(probe)))
        except LinkError as error:
            link.abort()
            raise TransportUnusable(
                f"no transport of UCX reads one-sidedly between these two: a first read failed: {_why(error)}",
                is_fault=True,
            ) from None
        except BaseException:
            link.abort()
            raise
        return link

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        """See Registration. Raises LinkClosed where UCX cannot serve the pool to this peer."""
        if len(body):
            raise MalformedMessage("UCX needs to know nothing of who reads")
        assert isinstance(link, StreamLink)
        try:
            access = self._owners.access(device_of(link.local_host))
        except (UcxError, ValueError) as error:
            _log.warning("a transport cannot be used", peer=link.peer, transport=NAME, why=_why(error))
            raise LinkClosed(link.peer, _why(error)) from None
        return sealed_access(access, self.offer)

    def detach(self, link: TensorLink) -> None:
        """See Registration: nothing is kept of a link."""

    def close(self) -> None:
        """See Registration."""
        self._owners.close()


def register(pool: Pool) -> UcxPool:
    """The pool, known to UCX. Raises ImportError where there is no UCX, ConfigError where it is too old."""
    try:
        return UcxPool(pool)
    except UcxError as error:
        raise ConfigError("tensor_transport", f"ucx cannot be used: {error.why}") from None


def _why(error: Exception) -> str:
    return error.why if isinstance(error, UcxError | LinkClosed) else str(error)
