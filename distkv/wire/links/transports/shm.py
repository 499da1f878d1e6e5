"""The tensor link between workers of one host: frames over a socket, reads straight from the peer's mapped pool."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from distkv.errors import MalformedMessage
from distkv.wire.links.base import BlockRead, CheckedRead
from distkv.wire.links.memory.mapped_copy import can_check, copy_checked
from distkv.wire.links.memory.pool_memory import MappablePool, Part, PeerPool, PoolUnmappable, host_key, slots_problem
from distkv.wire.links.memory.runs import Destination, places_of, runs_of
from distkv.wire.links.memory.slot_numbers import numbers_of
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.transports.mapped_read import CheckedMappedRead, MappedRead, copies_of_blocks, copies_of_runs
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.links.transports.sockets import greet, open_tcp, open_unix
from distkv.wire.links.transports.stream_link import StreamLink
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Hello


class ShmLink(StreamLink):
    """A TensorLink that reads without the peer's CPU, also while the peer is stopped. Owns the mapping."""

    def __init__(self, frames: FrameSocket, pool: PeerPool) -> None:
        super().__init__(frames, pool.slot_bytes, pool.num_slots, transport="shm")
        self._pool, self.mapped = pool, pool.view

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        numbers = self._checked_numbers(slots, into, part)
        if part is None:
            copies = copies_of_blocks(self._pool.memory, numbers, places_of(into, self.slot_bytes), self.slot_bytes)
        else:
            copies = copies_of_runs(self._pool.memory, runs_of(numbers, self.slot_bytes, into, part))
        return MappedRead(copies, self._frames)

    def read_checked(self, slots: Sequence[int], into: Destination) -> CheckedRead | None:
        """See CheckingLink."""
        if not can_check(self.slot_bytes):
            return None
        numbers = self._checked_numbers(slots, into, None)
        places = places_of(into, self.slot_bytes)
        return CheckedMappedRead(self._pool.memory, numbers, places, self.slot_bytes, self._frames)

    def copy_checked(self, slots: Sequence[int], to: Sequence[int]) -> array[int] | None:
        """See CheckingLink."""
        if not can_check(self.slot_bytes):
            return None
        if problem := slots_problem(slots, self.num_slots):
            raise MalformedMessage(problem)
        found = copy_checked(self._pool.memory, slots, to, self.slot_bytes)
        # As for all reads: only an open connection says that the owner did not die before or meanwhile.
        self._frames.check_alive()
        return found

    def close(self) -> None:
        super().close()
        self._pool.close()

    def abort(self) -> None:
        super().abort()
        self._pool.close()

    def _checked_numbers(self, slots: Sequence[int], into: Destination, part: Part | None) -> array[int]:
        """The slots of a read that may begin. Whether the peer lives is looked at behind every piece, as it may die
        meanwhile; here only whether the link has ended."""
        try:
            numbers = numbers_of(slots)
        except OverflowError:
            raise MalformedMessage(slots_problem(slots, self.num_slots)) from None
        self._check_read(numbers, into, part)
        self._frames.check_open()
        return numbers


def connect(endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> ShmLink:
    """A link that maps the peer's pool; see registry.CONNECT."""
    if endpoint.host_key != host_key():
        raise TransportUnusable("it is on another host, of another user or process namespace, or /proc hides it")
    mappable = offered(endpoint, "shm", MappablePool)
    if mappable is None:
        raise TransportUnusable("the peer's pool cannot be mapped: it lies in the memory of a GPU")
    sock = open_unix(endpoint) or open_tcp(endpoint, hello.expects_id, timeout_s)
    frames, welcome = greet(sock, endpoint, hello, timeout_s)
    try:
        return ShmLink(frames, PeerPool(mappable, welcome.slot_bytes, welcome.num_slots, welcome.pool_token))
    except PoolUnmappable as unmappable:
        frames.end(abrupt=True)
        raise TransportUnusable(str(unmappable), is_fault=True) from None
    except BaseException:
        frames.end(abrupt=True)
        raise
