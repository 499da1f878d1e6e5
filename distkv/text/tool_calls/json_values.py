"""JSON values whose text comes in pieces: where they end. A character is looked at once.

`push` takes what follows, from `start` on, and returns where the value, its sound beginning, or the text ends.
is_closed: the value is complete. is_broken: what comes next cannot belong to it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_OUTSIDE = re.compile(r'["{}\[\]<]')
_INSIDE = re.compile(r'["\\]')
_LITERAL = re.compile(r"[-+.\w]*", re.ASCII)
_OPENS = {"}": "{", "]": "["}


class JsonString:
    """A string, from the character after its opening quote on."""

    def __init__(self) -> None:
        self.is_closed = False
        self._is_escaped = False

    def push(self, text: str, start: int) -> int:
        """See the module."""
        at = start
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = _INSIDE.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            if found[0] == '"':
                self.is_closed = True
                return at
            self._is_escaped = True
        return at


class JsonContainer:
    """An object or an array, from its opening bracket on. Its brackets match and its strings end; what else is in it
    may be anything but `<`, with which marks of the format begin."""

    def __init__(self) -> None:
        self.is_closed = self.is_broken = False
        self._open: list[str] = []
        self._string: JsonString | None = None

    def push(self, text: str, start: int) -> int:
        """See the module."""
        at = start
        while at < len(text) and not self.is_closed and not self.is_broken:
            if self._string is not None:
                at = self._string.push(text, at)
                if self._string.is_closed:
                    self._string = None
                continue
            found = _OUTSIDE.search(text, at)
            if found is None:
                return len(text)
            at = self._take(found[0], found.start())
        return at

    def _take(self, character: str, at: int) -> int:
        if character == '"':
            self._string = JsonString()
        elif character in "{[":
            self._open.append(character)
        elif self._open and self._open[-1] == _OPENS.get(character):
            self._open.pop()
            self.is_closed = not self._open
        else:
            self.is_broken = True
            return at
        return at + 1


class JsonScalar:
    """A string, a number, true, false or null, from its first character on. most: longer ones are broken.

    value: what it is, once it is closed.
    """

    def __init__(self, most: int | None) -> None:
        self.is_closed = self.is_broken = False
        self.value: Any = None
        self._room = most
        self._parts: list[str] = []
        self._string: JsonString | None = None

    def push(self, text: str, start: int) -> int:
        """See the module. A literal is closed by what follows it."""
        if not self._parts and text[start] == '"':
            self._string = JsonString()
            self._parts.append('"')
            start += 1
        end = self._end(text, start)
        if self._room is not None:
            end = min(end, start + self._room)
            self._room -= end - start
        self._parts.append(text[start:end])
        is_complete = end < len(text) if self._string is None else self._string.is_closed
        if self._room == 0:
            self.is_broken = True
        elif is_complete:
            self._close()
        return end

    def _end(self, text: str, start: int) -> int:
        if self._string is not None:
            return self._string.push(text, start)
        found = _LITERAL.match(text, start)
        assert found is not None
        return found.end()

    def _close(self) -> None:
        try:
            self.value = msgspec.json.decode("".join(self._parts))
            self.is_closed = True
        except (msgspec.DecodeError, UnicodeError):
            self.is_broken = True
