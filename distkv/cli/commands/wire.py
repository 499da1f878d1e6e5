"""`distkv wire`: what passed between the processes, made readable."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from msgspec import Meta

from distkv import checksums, token_ids
from distkv.errors import ConfigError, MalformedMessage
from distkv.log.lines import PRIVATE_FIELDS
from distkv.wire.capture import Frame, frames, trouble_at
from distkv.wire.messages import envelope
from distkv.wire.messages.data import DataMessage
from distkv.wire.messages.envelope import Envelope

FORMATS = ("auto", "raw", "hex", "base64")
HINT = "a capture begins where a message begins; --format says how its bytes are written"
Unpack = Callable[[bytes], Sequence[int]]
UNPACKED: dict[str, Unpack] = {"token ids": token_ids.unpack, "checksums": checksums.unpack}
PRIVATE = PRIVATE_FIELDS | {"stop_token_ids"}
DIRECTIONS = {
    "rManager or client → gManager": envelope.ToGManager,
    "gManager → rManager": envelope.GManagerAnswer,
    "rManager → peer": envelope.PeerRequest,
    "peer → rManager, in answer": envelope.PeerAnswer,
    "client → rManager or gManager": envelope.ClientRequest,
    "rManager or gManager → client": envelope.ToClient,
    "rManager → its worker": envelope.ToWorker,
    "worker → its rManager": envelope.FromWorker,
    "worker → worker": DataMessage,
}
HELP = """Look at messages of the protocol, which docs/protocol.md describes.

\b
Examples:
  distkv wire decode frame.bin
  distkv wire decode --help
"""
DECODE_HELP = """Print captured messages as JSON: messages between clients, gManager and rManagers, messages between an
rManager and its worker, and frames of tensor links. FILE, or standard input, holds one or several of them, bare or as
ZeroMQ sends them over TCP, as raw bytes, hex digits or base64.

Prompts, outputs and token ids are not shown, but for --show-private.

\b
Examples:
  distkv wire decode frame.bin
  xxd -p frame.bin | distkv wire decode
  distkv wire decode stream.hex --show-private
"""


def _decode(file: str, format: str, show_private: bool) -> int:
    try:
        given = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigError("FILE", f"cannot read {file}: {error.strerror}") from None
    data = _bytes_of(given, format)
    if not data:
        raise ConfigError("FILE", "there is nothing in it", "give captured bytes, or hex or base64 of them")
    try:
        for frame in frames(data):
            with trouble_at(frame.at, data):
                described = msgspec.json.encode(_described(frame, show_private), enc_hook=repr)
            click.echo(msgspec.json.format(described, indent=2))
    except MalformedMessage as error:
        raise MalformedMessage(f"{error.problem} ({HINT})") from None
    return 0


def _bytes_of(given: bytes, format: str) -> bytes:
    text = "".join(given.decode("ascii", "replace").split())
    if format == "auto":
        format = "hex" if re.fullmatch(r"(0x)?[0-9a-fA-F:]+", text) else "raw"
        if format == "raw" and len(text) % 4 == 0 and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", text):
            format = "base64"
    try:
        match format:
            case "hex":
                return bytes.fromhex(text.removeprefix("0x").replace(":", ""))
            case "base64":
                return base64.b64decode(text, validate=True)
            case _:
                return given
    except ValueError as error:
        raise ConfigError("FILE", f"it is no {format}: {error}", f"--format is one of {', '.join(FORMATS)}") from None


def _described(frame: Frame, show_private: bool) -> dict[str, Any]:
    message = frame.message
    body = message.body if isinstance(message, Envelope) else message
    kind = type(body)
    described: dict[str, Any] = {
        "type": kind.__name__,
        "direction": [name for name, union in DIRECTIONS.items() if kind in get_args(union)],
        "defined_in": kind.__module__,
        "at_byte": frame.at,
        "size_bytes": frame.size_bytes,
    }
    if frame.body_bytes is not None:
        described["tensor_bytes"] = frame.body_bytes
    if isinstance(message, Envelope):
        described |= {"id": message.id, "sender": message.sender, "cause": message.cause}
    described["fields"] = _shown(body, show_private)
    unknown = dict(_unknown(message, frame.plain, ""))
    if unknown:
        described["unknown_fields"] = {
            path: _shown(sent, True) if show_private else _hidden(sent) for path, sent in unknown.items()
        }
    return described


def _shown(value: Any, show_private: bool) -> Any:
    if isinstance(value, msgspec.Struct):
        packed = _packed_fields(type(value))
        fields = {
            name: list(packed[name](field)) if name in packed and field is not None else field
            for name, field in msgspec.structs.asdict(value).items()
        }
        return {
            name: _hidden(field) if name in PRIVATE and not show_private else _shown(field, show_private)
            for name, field in fields.items()
        }
    if isinstance(value, Mapping):
        return {str(name): _shown(item, show_private) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item, show_private) for item in value]
    return value


@cache
def _packed_fields(kind: type[msgspec.Struct]) -> dict[str, Unpack]:
    """Those that carry numbers as bytes, with what makes numbers of them."""
    return {
        field.name: UNPACKED[one.extra["packed"]]
        for field in msgspec.structs.fields(kind)
        for one in _metas(field.type)
        if isinstance(one, Meta) and one.extra and "packed" in one.extra
    }


def _metas(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        yield from _metas(part)


def _hidden(value: Any) -> Any:
    match value:
        case None:
            return None
        case str():
            return f"hidden: {len(value)} characters"
        case list() | tuple() | dict():
            return f"hidden: {len(value)} items"
        case _:
            return "hidden"


def _unknown(value: Any, sent: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of everything in `sent` that is no field of ours."""
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        if isinstance(sent, list):
            yield from ((f"{path}[{index}]", sent[index]) for index in range(len(names), len(sent)))
            sent = dict(zip(names, sent, strict=False))
        for name in sent:
            if name in names:
                yield from _unknown(getattr(value, name), sent[name], f"{path}.{name}".lstrip("."))
            elif name != "type" or value.__struct_config__.tag is None:
                yield f"{path}.{name}".lstrip("."), sent[name]
    elif isinstance(value, tuple | list):
        for index, (item, sent_item) in enumerate(zip(value, sent, strict=True)):
            yield from _unknown(item, sent_item, f"{path}[{index}]")


command = click.Group(
    "wire",
    help=HELP,
    commands=[
        click.Command(
            "decode",
            callback=_decode,
            params=[
                click.Argument(["file"], default="-", metavar="[FILE|-]"),
                click.Option(
                    ["--format"],
                    type=click.Choice(FORMATS),
                    default="auto",
                    show_default=True,
                    help="How the bytes are written.",
                ),
                click.Option(["--show-private"], is_flag=True, help="Show prompts, outputs and token ids too."),
            ],
            help=DECODE_HELP,
            context_settings={"max_content_width": 100},
        )
    ],
    context_settings={"max_content_width": 100},
)
