"""What msgspec finds wrong with a body, in a sentence that shows the value and what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

MAX_SHOWN = 80
MAX_OPENED_BYTES = 2**16
"""What is in longer ones is not shown: each of many small values would take much memory."""
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_EXPECTED, _GOT = re.compile("^Expected"), re.compile(r", got `\w+`$")
_SIZED = re.compile(r"expected `(array|object|str)` of length")
_KINDS = {"array": list, "object": dict, "str": str}
_STEP = re.compile(r"\w+")
_one_level: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw] | str)
_type_info = cache(inspect.type_info)


def explained(message: str, kind: type[msgspec.Struct], raw: Mapping[str, msgspec.Raw]) -> tuple[str, str]:
    """(what is wrong, the field's path) of a message of msgspec about a body of this kind. raw: its fields."""
    found = _PLACE.match(message)
    assert found is not None
    what, path = found["what"], found["path"] or ""
    if missing := _MISSING.search(what):
        return "is missing", f"{path}.{missing[1]}" if path else missing[1]
    if what.startswith("Invalid enum value"):
        what = f"expected one of {', '.join(map(repr, _choices(kind, path)))}"
    expected = _EXPECTED.sub("expected", _GOT.sub("", what))
    try:
        return f"{expected}{_got(raw, path, expected)}", path
    except (LookupError, TypeError, ValueError, RecursionError, msgspec.DecodeError):
        # It is long, or beside a name that is no UTF-8 or what is nested too deep; or a name comes twice, and what is
        # there the second time is right or of another kind.
        return expected, path


def _got(raw: Mapping[str, msgspec.Raw], path: str, expected: str) -> str:
    """The beginning of the value, or its length where that is wrong; a map for what is in it, as paths have no keys."""
    level: Any = raw
    value: memoryview | None = None
    for step in _STEP.findall(path.partition("[...]")[0]):
        if value is not None:
            level = _opened(value)
        value = memoryview(level[int(step) if isinstance(level, list) else step])
    if value is None:
        return ""
    if sized := _SIZED.match(expected):
        inner = _opened(value)
        if isinstance(inner, _KINDS[sized[1]]) and len(inner) > 1:
            return f", got {len(inner)}"
    text = bytes(value[: 5 * MAX_SHOWN]).decode(errors="replace")
    return f", got {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '...'}"


def _opened(value: memoryview) -> Any:
    if len(value) > MAX_OPENED_BYTES:
        raise LookupError
    return _one_level.decode(value)


def _choices(kind: type[msgspec.Struct], path: str) -> list[Any]:
    """The words that a field may have."""
    types = list(_alternatives(_type_info(kind)))
    for step in _STEP.findall(path):
        types = [inner for one in types for inner in _inside(one, step)]
    return [word for one in types if isinstance(one, inspect.LiteralType) for word in one.values]


def _inside(outer: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(outer, inspect.ListType):
        yield from _alternatives(outer.item_type)
    elif isinstance(outer, inspect.StructType):
        for field in outer.fields:
            if field.encode_name == step:
                yield from _alternatives(field.type)


def _alternatives(one: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(one, inspect.Metadata):
        yield from _alternatives(one.type)
    elif isinstance(one, inspect.UnionType):
        for inner in one.types:
            yield from _alternatives(inner)
    else:
        yield one
