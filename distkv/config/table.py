"""A schema as a table of settings: what each is called, what it takes, how a value for it is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from distkv.config.nearest import nearest
from distkv.config.schema import Settings
from distkv.config.values import parse_count
from distkv.errors import ConfigError
from distkv.log.lines import PRIVATE_FIELDS

ENV_PREFIX = "DISTKV_"
MAX_INTEGER = 2**63 - 1
"""Of every setting: other processes get them in 64 bits."""


class Setting(msgspec.Struct, frozen=True):
    """One field of a schema, as flags, environment and files see it.

    group: the field of the schema that it is in, if that is a group. kind: its type besides None, which it takes too if
    `optional`. expected: in words what it takes.
    """

    name: str
    group: str
    type: Any
    kind: inspect.Type
    default: Any
    help: str
    flag: str
    expected: str
    suffixed: bool
    optional: bool

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def envvar(self) -> str:
        return ENV_PREFIX + self.name.upper()

    def convert(self, value: object, source: str) -> Any:
        """The checked value of a setting that came from `source`, which the ConfigError names; it shows no secret."""
        if isinstance(value, str) and self.optional and value == "auto":
            return None
        got = self._shown(value)
        try:
            converted = self._converted(value)
        except ValueError:
            choices = self.kind.values if isinstance(self.kind, inspect.LiteralType) else ()
            hint = nearest(str(value), map(str, choices), "")
            raise ConfigError(self.name, f"expected {self.expected}, got {got} from {source}", hint) from None
        numbers = converted if isinstance(converted, tuple) else (converted,)
        if any(isinstance(one, int) and one > MAX_INTEGER for one in numbers):
            raise ConfigError(self.name, f"expected {MAX_INTEGER} at most, got {got} from {source}")
        return converted

    def _shown(self, value: object) -> str:
        """The value, unless there is a secret in it, or may be: tables have any settings."""
        if self.name in PRIVATE_FIELDS:
            return "another value"
        parts = value if isinstance(value, list) else [value]
        return "a table" if any(isinstance(one, dict | list) for one in parts) else repr(value)

    def _converted(self, value: object) -> Any:
        if isinstance(self.kind, inspect.VarTupleType):
            return msgspec.convert(self._parts(value), self.type)
        if isinstance(value, str) and self.suffixed:
            return msgspec.convert(parse_count(value), self.type)
        return msgspec.convert(value, self.type)

    def _parts(self, value: object) -> object:
        """A list from a text with commas, or one number; those that take suffixes as numbers."""
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()] or [""]
        if not self.suffixed:
            return value
        parts = value if isinstance(value, list | tuple) else [value]
        return [parse_count(part) if isinstance(part, str) else part for part in parts]

    def convert_text(self, text: str, source: str) -> Any:
        """As `convert`, for text from a command line or the environment."""
        if self.suffixed or not isinstance(self.kind, inspect.IntType | inspect.FloatType):
            return self.convert(text, source)
        try:
            number: object = int(text) if isinstance(self.kind, inspect.IntType) else float(text)
        except ValueError:
            number = text
        return self.convert(number, source)


@cache
def settings_of(schema: type[msgspec.Struct]) -> Mapping[str, Setting]:
    """The settings of a schema by name, in the order of its fields (own fields first), groups in their place."""
    shared = set(Settings.__struct_fields__)
    ordered = sorted(_fields(schema), key=lambda field: field.name in shared)
    return {setting.name: setting for field in ordered for setting in _settings(schema, field)}


def groups_of(schema: type[msgspec.Struct]) -> Mapping[str, type[msgspec.Struct]]:
    """The fields of a schema that are groups, and what they are."""
    return {field.name: field.type.cls for field in _fields(schema) if isinstance(field.type, inspect.StructType)}


def values_of(config: msgspec.Struct) -> dict[str, Any]:
    """The values of a config by the names of settings: as if there were no groups."""
    settings = settings_of(type(config))
    return {name: getattr(getattr(config, one.group) if one.group else config, name) for name, one in settings.items()}


def _fields(schema: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(schema)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _settings(schema: type[msgspec.Struct], field: inspect.Field) -> Iterator[Setting]:
    if isinstance(field.type, inspect.StructType):
        annotations = {one.name: one.type for one in msgspec.structs.fields(field.type.cls)}
        for one in field.type.fields:
            yield _setting(one, annotations[one.name], field.name)
    else:
        annotations = {one.name: one.type for one in msgspec.structs.fields(schema)}
        yield _setting(field, annotations[field.name], "")


def _setting(field: inspect.Field, annotation: Any, group: str) -> Setting:
    kind = field.type
    notes: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata):
        notes |= kind.extra_json_schema or {}
        extra |= kind.extra or {}
        kind = kind.type
    optional = False
    if isinstance(kind, inspect.UnionType):
        optional = True
        kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
        if isinstance(kind, inspect.Metadata):
            extra |= kind.extra or {}
            kind = kind.type
    if isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.Metadata):
        extra |= kind.item_type.extra or {}
    suffixed = bool(extra.get("suffixed"))
    return Setting(
        name=field.name,
        group=group,
        type=annotation,
        kind=kind,
        default=field.default,
        help=str(notes.get("description", "")),
        flag=str(extra.get("flag", "--" + field.name.replace("_", "-"))),
        expected=_in_words(kind, suffixed, optional),
        suffixed=suffixed,
        optional=optional,
    )


def _in_words(kind: inspect.Type, suffixed: bool, optional: bool) -> str:
    match kind:
        case inspect.LiteralType(values):
            words = "one of " + ", ".join(map(str, values))
        case inspect.BoolType():
            words = "true or false"
        case inspect.IntType() | inspect.FloatType():
            words = "an integer" if isinstance(kind, inspect.IntType) else "a number"
            if kind.ge is not None and kind.le is not None:
                words += f" from {kind.ge} to {kind.le}"
            else:
                bounds = {"≥": kind.ge, ">": kind.gt, "≤": kind.le}
                words += " and".join(f" {sign} {bound}" for sign, bound in bounds.items() if bound is not None)
            words += ", such as 4096, 32K or 4G" if suffixed else ""
        case inspect.VarTupleType():
            words = "whole numbers such as 4096 or 1K,2K" if suffixed else "a list of texts, or one text with commas"
        case _:
            words = "a text"
    return words + (" (or auto)" if optional else "")
