"""Pools in memory of GPUs that peers of the host map ("cuda_ipc"): the own one given away, theirs taken in."""

from __future__ import annotations

import os
import time
from typing import Annotated, ClassVar

import msgspec
import structlog
from msgspec import Meta
from torch import Tensor

from distkv.actors.worker.device_pool import DevicePool
from distkv.actors.worker.links.link_watch import LinkWatch
from distkv.actors.worker.links.mapped_link import MappedLink, PeerReads
from distkv.engine.device.device import Device
from distkv.engine.device.shared_memory.driver import DriverError
from distkv.engine.device.shared_memory.memory import MARK_BYTES, MappedMemory, MemorySharing, SharedMemory
from distkv.errors import ConfigError, MalformedMessage
from distkv.types import Transport
from distkv.wire.links import Pool, TensorLink, ask_to_attach, host_key
from distkv.wire.links.memory.pool_memory import PoolUnmappable
from distkv.wire.links.streams.descriptors import DescriptorIntake, give
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.links.transports.sockets import greet, open_unix
from distkv.wire.links.transports.stream_link import StreamLink
from distkv.wire.messages.common import Count, DataEndpoint, Value
from distkv.wire.messages.data import Hello

_INSIST = "use auto, or a GPU that shares its memory"

SLACK_BYTES = 2**30
"""Memory that a peer has mapped here is larger than its pool by less."""


class MappedPoolOffer(Value, frozen=True):
    """Metadata of "cuda_ipc": the pool lies in memory of the GPU with this UUID, and processes of the host map it."""

    unit: str


class IntakeName(Value, frozen=True):
    """Body of `Attach` to "cuda_ipc", in JSON: the abstract Unix socket where the descriptor is taken."""

    intake: Annotated[str, Meta(min_length=1, max_length=100)]


class GivenMemory(Value, frozen=True):
    """Body of `Attached`, in JSON. why: no descriptor was given, in words, else "". num_bytes: of the memory that it
    names, of which the pool is the beginning. mark: its last 64 bytes, hexadecimal."""

    why: str = ""
    num_bytes: Count = 0
    mark: Annotated[str, Meta(max_length=2 * MARK_BYTES)] = ""


class MappedPools:
    """A Registration of a pool in memory of a GPU. Used by any threads; closed when no link lives any more.

    A peer's pool is mapped for each link, and unmapped when the link ends at either side. So it outlives its
    incarnation for a moment at most, and nothing that was read counts unless the link lives afterwards.
    """

    name: ClassVar[str] = "cuda_ipc"

    def __init__(self, shared: SharedMemory, rows: Tensor, sharing: MemorySharing, device: Device) -> None:
        """shared: where the own pool lies. rows: that pool, uint8 [num_slots, slot_bytes]."""
        self.offer = MappedPoolOffer(unit=device.unit)
        self._shared, self._sharing = shared, sharing
        self._reads = PeerReads(device, rows)
        self._watch = LinkWatch()
        self._log = structlog.get_logger()

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> MappedLink:
        """A link whose peer's pool is mapped, and was seen to hold what its owner wrote."""
        deadline = time.monotonic() + timeout_s
        if endpoint.host_key != host_key():
            raise TransportUnusable("it is on another host, of another user or process namespace, or /proc hides it")
        offer = offered(endpoint, self.name, MappedPoolOffer)
        if offer is None:
            raise TransportUnusable("the peer's pool is not in memory that GPUs of this host map")
        try:
            why = self._sharing.why_unreachable(offer.unit)
        except DriverError as error:
            why = str(error)
        if why:
            raise TransportUnusable(why)
        sock = open_unix(endpoint)
        if sock is None:
            raise TransportUnusable("the peer's Unix socket cannot be reached")
        frames, welcome = greet(sock, endpoint, hello, timeout_s)
        memory = None
        try:
            memory = self._map(frames, welcome.slot_bytes, welcome.num_slots, max(0.001, deadline - time.monotonic()))
            self._watch.on_end(frames, memory.close)
        except BaseException as error:
            frames.end(abrupt=True)
            if memory is not None:
                memory.close()
            if isinstance(error, DriverError | PoolUnmappable | OSError):
                raise TransportUnusable(str(error), is_fault=True) from None
            raise
        return MappedLink(frames, welcome.slot_bytes, welcome.num_slots, self.name, memory, self._reads)

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        """See Registration: the memory's descriptor goes to the process at the other end of the link."""
        try:
            wanted = msgspec.json.decode(body, type=IntakeName)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise MalformedMessage(f"where a descriptor is taken: {error}") from None
        pid = None if link.stream is None else link.stream.peer_pid
        why = "this is no Unix socket" if pid is None else give(self._shared.descriptor, wanted.intake, pid)
        if why:
            self._log.warning("a transport cannot be used", peer=link.peer, transport=self.name, why=why)
            return msgspec.json.encode(GivenMemory(why=why))
        shared = self._shared
        return msgspec.json.encode(GivenMemory(num_bytes=shared.tensor.nbytes, mark=shared.mark.hex()))

    def detach(self, link: TensorLink) -> None:
        """See Registration: nothing is kept of a link. What a peer has mapped it keeps until it unmaps it."""

    def close(self) -> None:
        """See Registration."""
        self._watch.close()

    def _map(self, frames: FrameSocket, slot_bytes: int, num_slots: int, timeout_s: float) -> MappedMemory:
        """The peer's memory. Raises DriverError, PoolUnmappable, and what an exchange of frames does."""
        plain = StreamLink(frames, slot_bytes, num_slots, self.name)
        with DescriptorIntake() as intake:
            wanted = msgspec.json.encode(IntakeName(intake=intake.name))
            told = bytes(ask_to_attach(plain, self.name, wanted, timeout_s))
            try:
                given = msgspec.json.decode(told, type=GivenMemory)
                mark = bytes.fromhex(given.mark)
            except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
                raise MalformedMessage(f"the memory of a pool: {error}") from None
            if given.why:
                raise PoolUnmappable(given.why)
            pool_bytes = slot_bytes * num_slots
            if not pool_bytes + MARK_BYTES <= given.num_bytes <= pool_bytes + SLACK_BYTES or len(mark) != MARK_BYTES:
                raise MalformedMessage(f"memory of {given.num_bytes} bytes for a pool of {pool_bytes}")
            pid = frames.peer_pid
            assert pid is not None
            descriptor = intake.take(pid)
        try:
            memory = self._sharing.map(descriptor, given.num_bytes)
        finally:
            os.close(descriptor)
        if self._reads.bytes_at(memory, given.num_bytes - MARK_BYTES, MARK_BYTES) != mark:
            memory.close()
            raise PoolUnmappable("what is read there is not what its owner wrote")
        return memory


def mapped_pools_of(pool: Pool, device: Device, transport: Transport) -> MappedPools | None:
    """A pool, known to peers that may map it; None where they may not. Raises ConfigError where just that is insisted
    on."""
    if isinstance(pool, DevicePool) and pool.shared is not None and device.sharing is not None:
        return MappedPools(pool.shared, pool.rows, device.sharing, device)
    if transport == MappedPools.name:
        raise ConfigError("tensor_transport", f"{transport} cannot be used: {device.why_not_sharing}", _INSIST)
    return None
