"""Request bodies: decoded strictly, and errors that name the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from distkv.gateway.schema.errors import ApiError, invalid
from distkv.gateway.schema.requests import INSTEAD
from distkv.gateway.schema.wrong_values import explained

MAX_FIELDS = 256
MAX_HARMLESS_BYTES = 256
"""Values that change nothing are short, so longer ones are not even decoded."""
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_MOST_LEFT = 2 * len(r"\ud800") - 1
_PART = re.compile(r"messages\[\d+\]\.content\[\d+\]\.type")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
S = TypeVar("S", bound=msgspec.Struct)


def decode(body: bytes, kind: type[S], refused: Mapping[str, tuple[Any, ...]]) -> S:
    """A checked request. Raises ApiError 400 naming the field that is wrong.

    refused: fields that would change the answer and that are not supported, each with the values that change nothing.
    Other unknown fields are ignored, and nothing is made of them.
    """
    try:
        raw = _fields.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(body, error) from None
    if len(raw) > MAX_FIELDS:
        raise invalid(f"the body has {len(raw)} fields, over the limit of {MAX_FIELDS}")
    try:
        for name, harmless in refused.items():
            if name in raw and not _is_harmless(raw[name], harmless) and not _says_the_same(raw, name):
                raise _unsupported(name)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.ValidationError, OverflowError) as error:
        what, path = explained(str(error), kind, raw)
        if _PART.fullmatch(path) and what.startswith("expected one of"):
            problem = f"{path}: this server understands parts of type 'text' only, no images, audio or files"
            raise invalid(problem, path, "unsupported_parameter") from None
        raise invalid(f"{path}: {what}" if path else what, path or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(body, error) from None


def _says_the_same(raw: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether the field to use in its place is there, with the same value."""
    return name in INSTEAD and INSTEAD[name] in raw and bytes(raw[INSTEAD[name]]) == bytes(raw[name])


def _unsupported(name: str) -> ApiError:
    instead = f"; use {INSTEAD[name]}" if name in INSTEAD else ""
    return invalid(f"{name} is not supported by this server{instead}", name, "unsupported_parameter")


def _no_json(body: bytes, error: Exception) -> ApiError:
    what = str(error)
    if what == "Input data was truncated" and _HALF_PAIR.search(body, len(body) - _MOST_LEFT):
        what = "it has half of a surrogate pair"  # for which msgspec wants six more bytes
    return invalid(f"the body is no JSON object: {what}", code="invalid_json")


def _is_harmless(raw: msgspec.Raw, harmless: tuple[Any, ...]) -> bool:
    if len(bytes(raw)) > MAX_HARMLESS_BYTES:
        return False
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return False
    return value is None or any(_same(value, one) for one in harmless)


def _same(value: Any, harmless: Any) -> bool:
    return bool(value == harmless and isinstance(value, bool) == isinstance(harmless, bool))
