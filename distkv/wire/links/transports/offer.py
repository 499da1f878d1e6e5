"""What a worker offers to one transport: typed here, at both ends, and plain for all that only pass it on."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from distkv.errors import DistKVError, MalformedMessage
from distkv.wire.messages.common import DataEndpoint, TransportMetadata, Value

Metadata = TypeVar("Metadata", bound=Value)


class TransportUnusable(DistKVError):
    """A transport cannot join these two processes. is_fault: it was offered and should have worked."""

    def __init__(self, why: str, *, is_fault: bool = False) -> None:
        super().__init__(why)
        self.why, self.is_fault = why, is_fault


def offers(**transports: Value | None) -> dict[str, TransportMetadata]:
    """The `transports` of an endpoint: each with its metadata, those with None left out."""
    return {name: msgspec.to_builtins(one) for name, one in transports.items() if one is not None}


def offered(endpoint: DataEndpoint, transport: str, kind: type[Metadata]) -> Metadata | None:
    """What the endpoint offers to a transport, None if nothing. Raises MalformedMessage if it is none of `kind`."""
    plain = endpoint.transports.get(transport)
    try:
        return None if plain is None else msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"metadata of transport {transport}: {error}") from None
