"""The bytes of every message, kept: today's encoder must give exactly these, and every reader must understand them.

`current.json` has the examples in `examples.py`, remade by `python -m tests.wire.golden --write` together with those
shown in docs/protocol.md. `old.json` has what former versions wrote and is never remade: such bytes keep decoding.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgpack

from distkv.wire.codec import encode_envelope, encode_header
from tests.wire.golden.examples import ENVELOPES, HEADERS

CURRENT = Path(__file__).with_name("current.json")
OLD = Path(__file__).with_name("old.json")
PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
SHOWN = re.compile(r"^```golden\n(?P<name>\S+)\n(?P<hex>[0-9a-f\s]+?)\n(?P<plain>\{.*?\n?)```$", re.M | re.S)
BYTES_PER_LINE = 40


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Name → "hex", the bytes, and "plain", the map they hold."""
    golden: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return golden


def plain(encoded: bytes) -> Any:
    """What any MessagePack reader finds, as JSON has it: keys are texts, and so are bytes, in hex."""
    return json.loads(json.dumps(msgpack.unpackb(encoded, strict_map_key=False), default=_as_hex))


def _as_hex(value: bytes) -> str:
    return f"bytes {value.hex(' ', 4)}"


def encode_all() -> dict[str, bytes]:
    """The examples as they are encoded today."""
    envelopes = {name: encode_envelope(envelope) for name, envelope in ENVELOPES.items()}
    return envelopes | {name: encode_header(header) for name, header in HEADERS.items()}


def text_of(encoded: dict[str, bytes]) -> str:
    """A golden file, one message per line."""
    lines = (
        f"{json.dumps(name)}: " + json.dumps({"hex": one.hex(), "plain": plain(one)}, ensure_ascii=False)
        for name, one in encoded.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def shown_as(name: str, golden: dict[str, Any]) -> str:
    """The block that shows a message in docs/protocol.md."""
    encoded = bytes.fromhex(golden["hex"])
    rows = [encoded[at : at + BYTES_PER_LINE].hex(" ") for at in range(0, len(encoded), BYTES_PER_LINE)]
    # JSON may be broken between fields, not inside texts.
    fields = json.dumps(golden["plain"], ensure_ascii=False).replace(', "', ',\0"').split("\0")
    lines = [fields[0]]
    for field in fields[1:]:
        if len(lines[-1]) + len(field) < 119:
            lines[-1] += " " + field
        else:
            lines.append(" " + field)
    return "\n".join(["```golden", name, *rows, *lines, "```"])
