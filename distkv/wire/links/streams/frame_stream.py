"""The socket under a link, for those who send and receive whole frames by themselves."""

from __future__ import annotations

from typing import Protocol

from distkv.wire.messages.data import DataMessage


class FrameStream(Protocol):
    """The socket that carries a link's frames, for native code that sends and receives whole frames by itself, by the
    thread that receives, between `enter` and `leave`."""

    def fileno(self) -> int: ...

    @property
    def peer_pid(self) -> int | None:
        """The process at the other end when the connection was made, as the kernel knows it; None for TCP. Raises
        LinkClosed."""

    def enter(self) -> None:
        """The descriptor stays open from now on, whatever other threads do. Raises LinkClosed once the link is dead."""

    def leave(self) -> None: ...

    @property
    def has_received(self) -> bool:
        """Whether bytes are here that the socket does not have any more."""

    def beginning(self, header: DataMessage, body_bytes: int) -> bytes:
        """All of a frame but its body. Raises FrameTooLarge."""

    def take(self) -> bytes:
        """These bytes, which are not received any more; not after a `recv` that timed out in the middle of a frame."""

    def unread(self, taken: bytes) -> None:
        """These were received, and are to be received again, before all others; likewise."""
