"""One call that is written as a JSON object: `{"name": ..., "arguments": {...}}`, its members in any order."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from distkv.text.tool_calls.json_values import JsonContainer, JsonScalar
from distkv.text.tool_calls.pieces import MAX_NAME, CallArguments, CallBegun, Piece

SPACE = " \t\r\n"
NO_ARGUMENTS = "{}"
_MOST_SCALAR = 6 * MAX_NAME  # every character of a name may be written as \u0000
_MEMBERS = {name: name for name in ("name", "type", "id", "arguments", "function")} | {"parameters": "arguments"}
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class CallObject:
    """Reads the object as its text comes. The call begins when its name and the beginning of its arguments are known;
    until then all is held. Arguments may be an object, the text of one, null or absent. Name and arguments may be those
    of an object `function`, as OpenAI writes calls. known: names that it may have, None for any. See CallBody.
    """

    def __init__(self, known: Collection[str] | None = None) -> None:
        self.is_begun = self.is_over = self.is_complete = False
        self._known = known
        self._held: list[str] = []
        self._expected = "{"
        self._is_inside = False
        """Of `function`."""
        self._seen: set[str] = set()
        self._member: str | None = None
        self._scalar: JsonScalar | None = None
        self._container: JsonContainer | None = None
        self._name: str | None = None
        self._arguments: list[str] | None = None

    @property
    def held(self) -> str:
        """See CallBody."""
        return "" if self.is_complete else "".join(self._held)

    def push(self, text: str, start: int, out: list[Piece]) -> int:
        """See CallBody."""
        at = start
        while at < len(text) and not self.is_over:
            if self._container is not None:
                at = self._read_arguments(self._container, text, at, out)
                continue
            end = self._structure(text, at) if self._scalar is None else self._read_scalar(self._scalar, text, at)
            self._held.append(text[at:end])
            at = end
            self._begin(out)
        return at

    def _structure(self, text: str, at: int) -> int:
        character = text[at]
        if character in SPACE:
            return at + 1
        match self._expected, character:
            case "{", "{":
                self._expected = "key"
            case "key", '"':
                self._member, self._scalar = None, JsonScalar(_MOST_SCALAR)
                return at
            case ":", ":":
                self._expected = "value"
            case "value", "{" if self._member == "arguments":
                self._container, self._arguments = JsonContainer(), []
                return at
            case "value", "{" if self._member == "function":
                self._is_inside, self._expected = True, "key"
            case "value", _:
                self._scalar = JsonScalar(None if self._member == "arguments" else _MOST_SCALAR)
                return at
            case "next", ",":
                self._expected = "key"
            case "next", "}" if self._is_inside:
                self._is_inside = False
            case "next", "}":
                self.is_over = True
                self.is_complete = self._name is not None
                if self._arguments is None:
                    self._arguments = [NO_ARGUMENTS]
            case _:
                self.is_over = True
                return at
        return at + 1

    def _read_scalar(self, scalar: JsonScalar, text: str, at: int) -> int:
        end = scalar.push(text, at)
        if scalar.is_broken:
            self.is_over = True
        elif scalar.is_closed:
            self._scalar = None
            self.is_over = not (self._take_key if self._member is None else self._take_value)(scalar.value)
        return end

    def _take_key(self, key: Any) -> bool:
        """Whether the object may have such a member, and has not had it yet."""
        member = _MEMBERS.get(key)
        if member is None or member in self._seen:
            return False
        self._seen.add(member)
        self._member, self._expected = member, ":"
        return True

    def _take_value(self, value: Any) -> bool:
        """Whether the member may have this value."""
        self._expected = "next"
        match self._member, value:
            case "name", str():
                self._name = value
                return 0 < len(value) <= MAX_NAME and (self._known is None or value in self._known)
            case "type", _:
                return bool(value == "function")
            case "arguments", None:
                self._arguments = [NO_ARGUMENTS]
                return True
            case "arguments", str():
                self._arguments = [value]
                return _is_object(value)
            case "id", _:
                return True
        return False

    def _begin(self, out: list[Piece]) -> None:
        if self.is_begun or self._name is None or self._arguments is None or self._is_refused:
            return
        self.is_begun = True
        self._held.clear()
        out.append(CallBegun(self._name))
        if self._arguments:
            out.append(CallArguments("".join(self._arguments)))

    @property
    def _is_refused(self) -> bool:
        return self.is_over and not self.is_complete

    def _read_arguments(self, container: JsonContainer, text: str, at: int, out: list[Piece]) -> int:
        end = container.push(text, at)
        if self.is_begun:
            out.append(CallArguments(text[at:end]))
        else:
            assert self._arguments is not None
            self._arguments.append(text[at:end])
            self._held.append(text[at:end])
        if container.is_closed:
            self._container, self._expected = None, "next"
        self.is_over = container.is_broken
        return end


def _is_object(text: str) -> bool:
    try:
        _object.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
