"""Messages to bytes and back. Decoders are built once; whatever is wrong with foreign bytes becomes a WireError.

The bytes are plain MessagePack maps, so any MessagePack reader can show them. Unknown fields are ignored and missing
newer fields take their defaults, so neighbouring versions understand each other.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from distkv.errors import FrameTooLarge, MalformedMessage
from distkv.wire.messages.common import RequestId
from distkv.wire.messages.data import DataMessage
from distkv.wire.messages.envelope import Body, Control, Envelope, MessageId

Bytes = bytes | bytearray | memoryview

T = TypeVar("T")

MAX_MESSAGE_BYTES = 16 * 2**20
"""Default for the largest control message: a prompt of four million tokens fits."""


class _EnvelopeHead(msgspec.Struct):
    """What is read of an envelope whose body does not decode."""

    id: MessageId


class _RequestHead(msgspec.Struct):
    """What is read of a body that does not decode."""

    request_id: RequestId


class _RequestEnvelope(msgspec.Struct):
    body: _RequestHead


_encoder = msgspec.msgpack.Encoder()
_envelope_heads: msgspec.msgpack.Decoder[_EnvelopeHead] = msgspec.msgpack.Decoder(_EnvelopeHead)
_request_heads: msgspec.msgpack.Decoder[_RequestEnvelope] = msgspec.msgpack.Decoder(_RequestEnvelope)
_headers: msgspec.msgpack.Decoder[DataMessage] = msgspec.msgpack.Decoder(DataMessage)


class EnvelopeDecoder(Generic[Body]):
    """Reads the envelopes of one inbox: a body that is none of its union does not decode. See `inboxes` for all."""

    def __init__(self, bodies: Any) -> None:
        """bodies: the union (of the types that `Body` stands for)."""
        self._decoder: msgspec.msgpack.Decoder[Envelope[Body]] = msgspec.msgpack.Decoder(Envelope[bodies])

    def decode(self, data: Bytes, limit_bytes: int = MAX_MESSAGE_BYTES) -> Envelope[Body]:
        """Read one control-plane frame.

        Raises FrameTooLarge over `limit_bytes`, MalformedMessage (naming the path of the bad field) for anything else.
        """
        return _decode(self._decoder, data, limit_bytes)


def encode_envelope(envelope: Envelope[Control], limit_bytes: int | None = None) -> bytes:
    """One control-plane frame. Raises FrameTooLarge over `limit_bytes`, which is the limit of its reader, and
    MalformedMessage for an integer of more than 64 bits."""
    try:
        frame = _encoder.encode(envelope)
    except OverflowError as e:
        raise MalformedMessage(f"{type(envelope.body).__name__}: {e}") from None
    if limit_bytes is not None and len(frame) > limit_bytes:
        raise FrameTooLarge(len(frame), limit_bytes)
    return frame


def envelope_id(data: Bytes) -> str:
    """The id of an envelope whose body does not decode; empty if it has none that can be read."""
    try:
        return _decode(_envelope_heads, data, len(data)).id
    except MalformedMessage:
        return ""


def request_id(data: Bytes) -> str:
    """The request that an envelope is about whose body does not decode; empty if it names none that can be read."""
    try:
        return _decode(_request_heads, data, len(data)).body.request_id
    except MalformedMessage:
        return ""


def encode_header(header: DataMessage) -> bytes:
    """The MessagePack part of one tensor-link frame."""
    return _encoder.encode(header)


def decode_header(data: Bytes, limit_bytes: int = MAX_MESSAGE_BYTES) -> DataMessage:
    """Read the MessagePack part of one tensor-link frame; raises as `EnvelopeDecoder.decode` does."""
    return _decode(_headers, data, limit_bytes)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: Bytes, limit_bytes: int) -> T:
    if len(data) > limit_bytes:
        raise FrameTooLarge(len(data), limit_bytes)
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as e:
        raise MalformedMessage(f"a string is not UTF-8 ({e.reason})") from None
    except RecursionError:
        raise MalformedMessage("it is nested too deeply") from None
    except (msgspec.DecodeError, ValueError, OverflowError, MemoryError) as e:
        raise MalformedMessage(str(e) or type(e).__name__) from None
