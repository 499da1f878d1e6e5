"""Calls as the families of models write them: in a list, before a closing tag, behind a bare name."""

from __future__ import annotations

import re
from collections.abc import Collection

from distkv.text.tool_calls.call_object import SPACE, CallObject
from distkv.text.tool_calls.json_values import JsonContainer
from distkv.text.tool_calls.pieces import MAX_NAME, CallArguments, CallBegun, CallBody, Piece

_MOST_HEAD = MAX_NAME + 128
_HEAD = re.compile(r"\s*([\w.:/-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*", re.ASCII)
_BEGUN_MARK = "|".join(re.escape(mark[:end]) for mark in ("[CALL_ID]", "[ARGS]") for end in range(1, len(mark) + 1))
_BEGUN_HEAD = re.compile(rf"\s*[\w.:/-]*(?:\[CALL_ID\]\w*)?(?:{_BEGUN_MARK})?\s*", re.ASCII)


class CallArray:
    """`[{...}, {...}]`. See CallBody."""

    def __init__(self, known: Collection[str] | None = None) -> None:
        self.is_begun = self.is_over = False
        self._known = known
        self._expected = "["
        self._held: list[str] = []
        self._object: CallObject | None = None

    @property
    def held(self) -> str:
        """See CallBody."""
        return "".join(self._held) + ("" if self._object is None else self._object.held)

    def push(self, text: str, start: int, out: list[Piece]) -> int:
        """See CallBody."""
        at = start
        while at < len(text) and not self.is_over:
            if self._object is not None:
                at = self._object.push(text, at, out)
                self._look_at(self._object)
            else:
                at = self._structure(text, at)
        return at

    def _look_at(self, found: CallObject) -> None:
        if found.is_begun:
            self.is_begun = True
            self._held.clear()
        if found.is_complete:
            self._object, self._expected = None, ","
        elif found.is_over:
            self.is_over = True

    def _structure(self, text: str, at: int) -> int:
        character = text[at]
        match self._expected, character:
            case _, space if space in SPACE:
                pass
            case "[", "[":
                self._expected = "{"
            case "{", "{":
                self._object = CallObject(self._known)
                return at
            case ",", ",":
                self._expected = "{"
            case ",", "]":
                self.is_over = True
                self._held.clear()
                return at + 1
            case _:
                self.is_over = True
                return at
        self._held.append(character)
        return at + 1


class ClosedObject:
    """`{...}` and a closing tag. See CallBody."""

    def __init__(self, closing: str) -> None:
        self.is_over = False
        self._closing = closing
        self._object = CallObject()
        self._held: list[str] = []
        self._matched = 0

    @property
    def is_begun(self) -> bool:
        """See CallBody."""
        return self._object.is_begun

    @property
    def held(self) -> str:
        """See CallBody."""
        return self._object.held + "".join(self._held)

    def push(self, text: str, start: int, out: list[Piece]) -> int:
        """See CallBody."""
        at = self._object.push(text, start, out)
        self.is_over = self._object.is_over and not self.is_begun
        while at < len(text) and not self.is_over:
            character = text[at]
            if character == self._closing[self._matched]:
                self._matched += 1
            elif self._matched or character not in SPACE:
                self.is_over = True
                break
            self._held.append(character)
            at += 1
            if self._matched == len(self._closing):
                self.is_over = True
                self._held.clear()
        return at


class NamedObject:
    """`name{...}`, where `[ARGS]` may stand before the arguments, and `[CALL_ID]id` before that. See CallBody."""

    def __init__(self) -> None:
        self.is_begun = self.is_over = False
        self.held = ""
        self._arguments = JsonContainer()

    def push(self, text: str, start: int, out: list[Piece]) -> int:
        """See CallBody."""
        at = start
        while at < len(text) and not self.is_over:
            if self.is_begun:
                end = self._arguments.push(text, at)
                out.append(CallArguments(text[at:end]))
                self.is_over = self._arguments.is_closed or self._arguments.is_broken
                at = end
            elif text[at] == "{":
                self._begin(out)
            elif len(self.held) < _MOST_HEAD and _BEGUN_HEAD.fullmatch(self.held + text[at]):
                self.held += text[at]
                at += 1
            else:
                self.is_over = True
        return at

    def _begin(self, out: list[Piece]) -> None:
        found = _HEAD.fullmatch(self.held)
        if found is None or len(found[1]) > MAX_NAME:
            self.is_over = True
            return
        self.is_begun, self.held = True, ""
        out.append(CallBegun(found[1]))


class ArrayOrObject:
    """A list of calls, one call as an object, or one behind its name: the first character says which. See CallBody."""

    def __init__(self) -> None:
        self._space: list[str] = []
        self._body: CallBody | None = None

    @property
    def is_begun(self) -> bool:
        """See CallBody."""
        return self._body is not None and self._body.is_begun

    @property
    def is_over(self) -> bool:
        """See CallBody."""
        return self._body is not None and self._body.is_over

    @property
    def held(self) -> str:
        """See CallBody."""
        space = "" if self.is_begun else "".join(self._space)
        return space + ("" if self._body is None else self._body.held)

    def push(self, text: str, start: int, out: list[Piece]) -> int:
        """See CallBody."""
        at = start
        while self._body is None and at < len(text):
            character = text[at]
            if character in SPACE:
                self._space.append(character)
                at += 1
            else:
                self._body = CallArray() if character == "[" else CallObject() if character == "{" else NamedObject()
        return at if self._body is None else self._body.push(text, at, out)
