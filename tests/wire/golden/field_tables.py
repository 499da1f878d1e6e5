"""The field tables of docs/protocol.md, made from the message types.

Name, type and default of a field are those of its annotation; its meaning is the description in that, or the `#:`
comment behind the field, or on the lines above it. A table stands between `<!-- fields of NAME -->` and
`<!-- end of fields -->`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from pathlib import Path

import msgspec
from msgspec import inspect

from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams, TokenLogprobs
from distkv.wire import messages
from distkv.wire.messages.common import Message, Value

TABLE = re.compile(r"^<!-- fields of (?P<name>\w+) -->\n.*?^<!-- end of fields -->$", re.M | re.S)
MEANING = "#:"


def message_types() -> dict[str, type[msgspec.Struct]]:
    """Every message, every part of one, and what users put into `Submit` and get out of `TokenChunk`, by name."""
    modules = [
        importlib.import_module(f"{messages.__name__}.{m.name}") for m in pkgutil.iter_modules(messages.__path__)
    ]
    kinds = [SamplingParams, StructuredOutput, TokenLogprobs] + [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
        and kind not in (Message, Value)
    ]
    return {kind.__name__: kind for kind in kinds}


def with_tables(page: str) -> str:
    """The page with every table as it should be now."""
    kinds = message_types()
    return TABLE.sub(lambda found: table_of(kinds[found["name"]]), page)


def table_of(kind: type[msgspec.Struct]) -> str:
    """The table of one type, with its markers."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    meant, lines = meanings(kind), ["No fields."]
    if info.fields:
        lines = ["| field | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{one.encode_name}` | {_type_cell(one)} | {_escaped(meant.get(one.name, ''))} |" for one in info.fields
        ]
    if info.array_like:
        lines = ["On the wire an array, in this order.", "", *lines]
    return "\n".join([f"<!-- fields of {kind.__name__} -->", "", *lines, "", "<!-- end of fields -->"])


def meanings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Field → what its description or its `#:` comment says, of the fields that have one."""
    lines, classes = _source_of(kind.__module__)
    found = _descriptions(kind)
    for node in classes[kind.__name__].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _, mark, meaning = lines[(node.end_lineno or node.lineno) - 1].partition(MEANING)
            above = node.lineno - 2
            comment = [meaning.strip()] if mark else []
            while lines[above].lstrip().startswith(MEANING):
                comment.insert(0, lines[above].lstrip().removeprefix(MEANING).strip())
                above -= 1
            if comment:
                found[node.target.id] = " ".join(comment)
    return found


def _descriptions(kind: type[msgspec.Struct]) -> dict[str, str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    noted = {
        one.name: (one.type.extra_json_schema or {}) for one in info.fields if isinstance(one.type, inspect.Metadata)
    }
    return {name: notes["description"] for name, notes in noted.items() if "description" in notes}


@functools.cache
def _source_of(module: str) -> tuple[list[str], dict[str, ast.ClassDef]]:
    source = Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8")
    return source.splitlines(), {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("None", "nil")


def _type_cell(field: inspect.Field) -> str:
    cell = _named(field.type)
    if field.required:
        return cell
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"{cell}; default {_default(default)}"


def _default(value: object) -> str:
    match value:
        case msgspec.Struct():
            return "all defaults"
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case "":
            return '""'
        case tuple():
            return str(list(value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _named(kind: inspect.Type) -> str:
    """A type in words."""
    match kind:
        case inspect.Metadata(extra={"packed": what}):
            return f"packed {what}"
        case inspect.Metadata(type=inner):
            return _named(inner)
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "bool"
        case inspect.IntType(ge=least, le=most):
            return "integer" + _bounds(least, most)
        case inspect.FloatType(ge=least, le=most):
            return "number" + _bounds(least, most)
        case inspect.LiteralType(values=values):
            return r" \| ".join(f"`{value}`" for value in values)
        case inspect.StructType(cls=cls):
            return f"`{cls.__name__}`"
        case inspect.VarTupleType(item_type=item):
            return f"list of {_named(item)}"
        case inspect.TupleType(item_types=items):
            return f"[{', '.join(map(_named, items))}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"map of {_named(key)} to {_named(value)}"
        case inspect.UnionType(types=types) if all(isinstance(one, inspect.StructType) for one in types):
            return "map, a message"
        case inspect.UnionType(types=types):
            *first, last = [_named(one) for one in types if not isinstance(one, inspect.NoneType)]
            named = ", ".join(first) + " or " + last if first else last
            # A comma parts "a list of nil" from "no list".
            return named + (", or nil" if " or nil" in named else " or nil") * kind.includes_none
        case _:
            raise TypeError(f"there is no word for {kind}")


def _bounds(least: float | None, most: float | None) -> str:
    if most is not None:
        return f" in [{least}, {most:g}]".replace("e+09", "e9")
    return "" if least is None else f" ≥ {least}"
