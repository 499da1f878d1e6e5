"""The contract of all tensor links, whatever carries the bytes.

A link joins one thread of one worker with one thread of another, and blocks. Frames arrive whole, in order, at most
once. The end that connected sends requests, the end that accepted answers; both ends sending large bodies at the same
time would wait for each other until a timeout.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from distkv.wire.links.memory.pool_memory import Part
from distkv.wire.links.memory.runs import Destination
from distkv.wire.links.streams.frame_stream import FrameStream
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import DataMessage

Buffer = Any
"""Anything C-contiguous with the buffer protocol: bytes, memoryview, a numpy array. And SlotViews, whose views follow
each other."""

MAX_HEADER_BYTES = 8 * 2**20
MAX_BODY_BYTES = 2**30
SEND_TIMEOUT_S = 10.0


class BlockRead(Protocol):
    """A read under way on a link, used by the thread that started it.

    The destination is the read's until `poll` has returned True, or one of the two has returned or raised at its end:
    whatever happens to the link, nothing is written there afterwards, however late it comes. So whoever started a read
    keeps the memory until then, also after `abort`, which makes both raise at once.
    """

    def poll(self) -> bool:
        """Whether it is complete: the destination is readable. Waits for nothing, and moves the link's reads on: a read
        that is neither polled nor waited for may stand still.

        Raises LinkClosed and WireError; the link is dead then, and the destination undefined.
        """

    def wait(self, timeout_s: float) -> None:
        """Until it is complete. Raises as `poll` does, and LinkTimeout; the link is dead after that, too."""


@runtime_checkable
class CheckedRead(BlockRead, Protocol):
    """A read that computes checksums on the way."""

    @property
    def checksums(self) -> array[int]:
        """xxh3 (uint64) of every block as it was written, in the order of the slots; once it is complete."""


class TensorLink(Protocol):
    """One connection between two workers, after the handshake.

    peer: the instance id of the other end. transport: what carries it. After LinkClosed or a WireError a link is dead:
    abort it and open a new one.
    """

    @property
    def peer(self) -> str: ...

    @property
    def transport(self) -> str: ...

    @property
    def within_host(self) -> bool:
        """Whether the peer is certainly on this host: frames pass no network, nor its part of the kernel."""

    @property
    def mapped(self) -> memoryview | None:
        """The peer's pool as memory of this process, read-only; None if this link does not map it. What is read there
        without `read` counts only if the link lives afterwards."""

    @property
    def stream(self) -> FrameStream | None:
        """What carries the frames, if that is a socket."""

    def send(self, header: DataMessage, *buffers: Buffer, timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Send one frame: the header, then the buffers' bytes back to back, uncopied. Returns when the buffers may be
        changed; the peer need not have read anything.

        Raises LinkClosed, FrameTooLarge (nothing was sent), and LinkTimeout when the peer takes no bytes for
        `timeout_s`; the link is dead then.
        """

    def recv(self, timeout_s: float) -> tuple[DataMessage, memoryview]:
        """The next frame. Its body (flat, writable, aligned for any dtype) is valid until the next `recv` or `read`.

        Raises LinkTimeout (the link is still good, also in the middle of a frame: call again), LinkClosed (also for
        a frame that says `Denied`), and WireError for bytes that break the protocol.
        """

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        """Start a one-sided read of rBlocks of the peer's pool; runs of blocks that are neighbours at both ends are
        read in one operation. Any number may be under way on one link, and they may complete in any order.

        part: which bytes of every rBlock; all of them by default. into: holds as many blocks, or parts, as `slots`. The
        bytes are a copy of what lay there at some moment between the start and the completion; only epochs and
        checksums show whether they are the right ones. The peer was alive when the copy was complete. No frames while
        reads are under way.

        Raises LinkClosed, LinkTimeout as `send` does, and MalformedMessage for a slot outside the peer's pool: nothing
        is read then, and the link is as good as before.
        """

    def read(self, slots: Sequence[int], into: Destination, timeout_s: float, part: Part | None = None) -> None:
        """`read_blocks`, complete when it returns. Raises as that and `BlockRead.wait` do."""

    def close(self) -> None:
        """Polite end: what was sent still arrives, then the peer gets LinkClosed. From any thread, more than once."""

    def abort(self) -> None:
        """Abrupt end: calls that wait on this link in other threads raise LinkClosed at once, and so do its reads. From
        any thread; what is to be said of memory that reads write is said at `BlockRead`."""


@runtime_checkable
class CheckingLink(Protocol):
    """A TensorLink whose reads are copies by this process's own CPU, which can look at the bytes while it has them."""

    def read_checked(self, slots: Sequence[int], into: Destination) -> CheckedRead | None:
        """As `read_blocks`, of whole rBlocks; None, with nothing started, where it cannot be done."""

    def copy_checked(self, slots: Sequence[int], to: Sequence[int]) -> array[int] | None:
        """Copy few rBlocks to these addresses, which others write to no more than a destination of reads; returns the
        xxh3 (uint64) of each as it was written. None, with nothing copied, where it cannot be done. Raises as
        `read_blocks` and `BlockRead.poll` do, and ValueError, with nothing copied, once the link was ended here."""


@runtime_checkable
class PlacingLink(Protocol):
    """A TensorLink that reads into the own pool where that lies, with no memory of the host in between."""

    def read_into_pool(self, slots: Sequence[int], own_slots: Sequence[int]) -> BlockRead | None:
        """As `read_blocks`, of whole rBlocks, each into one of these slots of the own pool; no slot of it twice. None,
        with nothing started, where it cannot be done."""


class LinkListener(Protocol):
    """Accepts links. malformed: connections dropped for what they sent. refused: those that failed the handshake."""

    malformed: int
    refused: int

    @property
    def address(self) -> str:
        """Where peers really connect to."""

    @property
    def endpoint(self) -> DataEndpoint:
        """All that peers need to know for `connect`."""

    def accept(self, timeout_s: float) -> TensorLink | None:
        """The next link whose handshake is complete, or None after `timeout_s`.

        Whatever strangers send is counted and logged here and never raised. Handshakes progress only inside this call,
        any number side by side; so call it in a loop, in one thread. Raises LinkClosed once the listener is closed.
        """

    def close(self) -> None:
        """Stop accepting; links that were accepted live on. From any thread, more than once."""
