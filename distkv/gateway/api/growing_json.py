"""JSON that is written as its parts come, so that no long work is left at its end: the event loop has other requests.

Parts of JSON are bytes; in their order they are the document.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

PART_BYTES = 64 * 2**10
"""Parts are sent in pieces of about this size."""
_encoder = msgspec.json.Encoder()


class JsonArray:
    """An array that grows. It takes hardly more memory than it has bytes, however few come at a time."""

    def __init__(self) -> None:
        self._parts: deque[bytearray] = deque()

    def extend(self, items: Sequence[Any]) -> int:
        """Append a few items; returns how many bytes they take."""
        if not items:
            return 0
        added = (b"," if self._parts else b"") + _encoder.encode(items)[1:-1]
        if not self._parts or len(self._parts[-1]) >= PART_BYTES:
            self._parts.append(bytearray())
        self._parts[-1] += added
        return len(added)

    def parts(self) -> Iterator[bytes]:
        """The array, once: what was taken is here no more."""
        yield b"["
        while self._parts:
            yield bytes(self._parts.popleft())
        yield b"]"


class JsonText:
    """A text that grows. It takes as much memory as UTF-8 does."""

    def __init__(self) -> None:
        self._utf8 = bytearray()

    def __bool__(self) -> bool:
        return bool(self._utf8)

    def extend(self, text: str) -> int:
        """Append a text; returns how many bytes it takes."""
        added = text.encode()
        self._utf8 += added
        return len(added)

    def parts(self) -> Iterator[bytes]:
        """The text as JSON."""
        yield _encoder.encode(self._utf8.decode())


def json_value(value: Any) -> Iterator[bytes]:
    """Anything short."""
    yield _encoder.encode(value)


def json_array(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """An array of items that are parts."""
    separator = b"["
    for item in items:
        yield separator
        yield from item
        separator = b","
    yield b"[]" if separator == b"[" else b"]"


def json_object(**fields: Iterable[bytes]) -> Iterator[bytes]:
    """An object with fields that are parts."""
    separator = b"{"
    for name, parts in fields.items():
        yield separator + _encoder.encode(name) + b":"
        yield from parts
        separator = b","
    yield b"{}" if separator == b"{" else b"}"


async def in_pieces(parts: Iterable[bytes]) -> list[bytes]:
    """The document in pieces of about PART_BYTES; the event loop has other turns meanwhile."""
    pieces: list[bytes] = []
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= PART_BYTES:
            pieces.append(bytes(piece))
            piece.clear()
            await asyncio.sleep(0)
    return [*pieces, bytes(piece)]


class JsonResponse:
    """A response of status 200 whose body is sent piece by piece, as an ASGI application."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the whole response."""
        size_bytes = sum(map(len, self._pieces))
        headers = [(b"content-length", b"%d" % size_bytes), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
