"""The contract of all tensor links, whatever carries the bytes.

A link joins one thread of one worker with one thread of another, and blocks. Frames arrive whole, in order, at most
once. The end that connected sends requests, the end that accepted answers; both ends sending large bodies at the same
time would wait for each other until a timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from distkv.wire.links.pool_memory import Part
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import DataMessage

Buffer = Any
"""Anything C-contiguous with the buffer protocol: bytes, memoryview, a numpy array."""

MAX_HEADER_BYTES = 8 * 2**20
MAX_BODY_BYTES = 2**30
SEND_TIMEOUT_S = 10.0


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
    def mapped(self) -> memoryview | None:
        """The peer's pool as memory of this process, read-only; None if this link does not map it. What is read there
        without `read` counts only if the link lives afterwards."""

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

    def read(
        self, slots: Sequence[int], into: Sequence[memoryview], timeout_s: float, part: Part | None = None
    ) -> None:
        """One-sided read of rBlocks of the peer's pool, neighbouring slots in one operation.

        part: which bytes of every rBlock; all of them by default. into: writable views of one or more whole rBlocks, or
        parts of them, each, together as many as `slots`. The bytes are a copy of what lay there at some moment during
        the call; only epochs and checksums show whether they are the right ones.
        The peer was alive when the copy was complete. Not while frames are under way on this link.

        Raises LinkTimeout, LinkClosed and WireError (a slot outside the peer's pool: nothing was read; the link is
        dead after the other two, and `into` undefined).
        """

    def close(self) -> None:
        """Polite end: what was sent still arrives, then the peer gets LinkClosed. From any thread, more than once."""

    def abort(self) -> None:
        """Abrupt end: calls that wait on this link in other threads raise LinkClosed at once."""


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
