"""A pool known to transports that must be told of memory before they carry it, and their talk when a link begins.

A process registers its pool once with each. What peers must know travels over the links' sockets after the handshake:
nothing of a transport's own form is read from, or told to, who is not authenticated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.links.base import TensorLink
from distkv.wire.links.block_reads import deny
from distkv.wire.messages.common import DataEndpoint, Value
from distkv.wire.messages.data import Attach, Attached, DataMessage, Hello

MAX_ATTACH_BYTES = 64 * 1024


class Registration(Protocol):
    """One pool and one transport, at both ends of links: peers read from the pool, own reads write into it.

    Used by any threads. Closed by who registered it, when no link of it lives any more.
    """

    @property
    def offer(self) -> Value:
        """What stands in `DataEndpoint.transports`: that peers may attach, and nothing secret."""

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> TensorLink:
        """A link that reads by this transport. Raises what `links.connect` does, and TransportUnusable."""

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        """The owner's end: a peer, whose link this is, would read; returns what it must know.

        Raises MalformedMessage for a body that is none of this transport.
        """

    def detach(self, link: TensorLink) -> None:
        """The owner's end: an attached link has ended."""

    def close(self) -> None:
        """Let go of the pool."""


Registrations = Mapping[str, Registration]
"""By the names of their transports."""


def attach(link: TensorLink, request: Attach, body: memoryview, registered: Registrations) -> Registration:
    """Answer one `Attach`; who calls it detaches the link at its end.

    A bad request is denied, the link ended, and MalformedMessage raised. Raises LinkError as `send` does.
    """
    registration = registered.get(request.transport)
    if registration is None:
        raise deny(link, "transport", "one that the endpoint offers", request.transport)
    if len(body) > MAX_ATTACH_BYTES:
        raise deny(link, "body", f"at most {MAX_ATTACH_BYTES} bytes", str(len(body)))
    try:
        answer = registration.attach(link, body)
    except MalformedMessage as error:
        raise deny(link, "body", f"one of transport {request.transport}", error.problem) from None
    try:
        link.send(Attached(transport=request.transport), answer)
    except BaseException:
        registration.detach(link)
        raise
    return registration


def ask_to_attach(link: TensorLink, transport: str, body: bytes, timeout_s: float) -> memoryview:
    """The asking end's exchange on a fresh link; returns what the owner says, valid until the next frame.

    Raises LinkError and MalformedMessage.
    """
    link.send(Attach(transport=transport), body, timeout_s=timeout_s)
    answer: DataMessage
    answer, told = link.recv(timeout_s)
    if not isinstance(answer, Attached) or answer.transport != transport:
        raise MalformedMessage(f"the answer to Attach is {type(answer).__name__}")
    if len(told) > MAX_ATTACH_BYTES:
        raise LinkClosed(link.peer, f"{len(told)} bytes of metadata, at most {MAX_ATTACH_BYTES} are read")
    return told
