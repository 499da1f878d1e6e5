"""Captured bytes taken apart: what passed on a socket, without the process that read it.

Frames may follow each other, as they do in a recorded stream: bare MessagePack messages, tensor-link frames, and
messages as ZeroMQ frames them on TCP (ZMTP 3), whose greeting and commands are left out.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec

from distkv.errors import MalformedMessage
from distkv.wire.codec import decode_header
from distkv.wire.inboxes import CAPTURE
from distkv.wire.links.streams.frames import MAGIC
from distkv.wire.messages.data import DataMessage
from distkv.wire.messages.envelope import Control, Envelope
from distkv.wire.worker_pipe import MAX_PIPE_MESSAGE_BYTES

_TENSOR = struct.Struct("<IIQ")
_TENSOR_START = struct.pack("<I", MAGIC)
_GREETING_BYTES = 64
_GREETING_START, _GREETING_MARK = 0xFF, 0x7F
# Flags of a ZMTP frame; none of these bytes begins a message of ours, which are maps.
_SHORT, _LONG, _COMMANDS = (0x00, 0x01), (0x02, 0x03), (0x04, 0x06)
_HEADER_NAMES = frozenset(kind.__name__ for kind in DataMessage.__args__)


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a capture.

    at: where it begins, in bytes from the start. message: an Envelope, or a tensor link's header. plain: the map as
    it was sent, fields that we do not know included. body_bytes: of tensors that follow it, None if it stands alone.
    """

    at: int
    size_bytes: int
    message: Envelope[Control] | DataMessage
    plain: dict[str, Any]
    body_bytes: int | None = None


def frames(data: bytes) -> Iterator[Frame]:
    """The messages in `data`, in order. Raises MalformedMessage saying at which byte the trouble is."""
    at = 0
    while at < len(data):
        start = at
        with trouble_at(start, data):
            at, payload, body_bytes = _next(data, at)
            if payload:
                yield _frame(start, at - start, payload, body_bytes)


@contextlib.contextmanager
def trouble_at(at: int, data: bytes) -> Iterator[None]:
    """Within, a MalformedMessage says at which byte the message begins that it is about."""
    try:
        yield
    except MalformedMessage as error:
        raise MalformedMessage(f"at byte {at} of {len(data)}: {error.problem}") from None


def _next(data: bytes, at: int) -> tuple[int, bytes, int | None]:
    """Where the frame at `at` ends, its MessagePack bytes, and the size of a tensor frame's body."""
    first = data[at]
    if first == _GREETING_START and data[at + 9 : at + 10] == bytes([_GREETING_MARK]):
        return at + len(_take(data, at, _GREETING_BYTES)), b"", None
    if first in _SHORT or first in _LONG or first in _COMMANDS:
        width = 1 if first in (*_SHORT, _COMMANDS[0]) else 8
        size = int.from_bytes(_take(data, at + 1, width), "big")
        payload = _take(data, at + 1 + width, size)
        return at + 1 + width + size, b"" if first in _COMMANDS else payload, None
    if data.startswith(_TENSOR_START, at):
        _magic, header_bytes, body_bytes = _TENSOR.unpack(_take(data, at, _TENSOR.size))
        header = _take(data, at + _TENSOR.size, header_bytes)
        # A capture may well be cut off in the tensors; what they are is in the header.
        end = at + _TENSOR.size + header_bytes + body_bytes
        return min(end, len(data)), header, body_bytes
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data[at : at + MAX_PIPE_MESSAGE_BYTES])
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        raise MalformedMessage("the bytes end inside a message") from None
    except (msgpack.UnpackException, ValueError) as error:
        raise MalformedMessage(f"it is no MessagePack ({error or type(error).__name__})") from None
    return at + unpacker.tell(), data[at : at + unpacker.tell()], None


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise MalformedMessage(f"the bytes end inside a frame, {at + size - len(data)} are missing")
    return data[at : at + size]


def _frame(at: int, size_bytes: int, payload: bytes, body_bytes: int | None) -> Frame:
    try:
        plain = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"it is no MessagePack ({error})") from None
    if not isinstance(plain, dict):
        raise MalformedMessage(f"a message is a map, this is {type(plain).__name__}")
    message: Envelope[Control] | DataMessage
    if body_bytes is not None or plain.get("type") in _HEADER_NAMES:
        message = decode_header(payload)
    else:
        message = CAPTURE.decode(payload, MAX_PIPE_MESSAGE_BYTES)
    return Frame(at=at, size_bytes=size_bytes, message=message, plain=plain, body_bytes=body_bytes)
