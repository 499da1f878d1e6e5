"""Calls that marks set apart from the content around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distkv.text.tool_calls.call_object import SPACE
from distkv.text.tool_calls.pieces import CallBody, Content, Piece

_MOST_SPACE = 64


@dataclass(frozen=True)
class Marks:
    """bodies: what follows each mark. inside: marks with which their body itself begins. separators: characters that
    may stand between two calls, besides space."""

    bodies: Mapping[str, Callable[[], CallBody]]
    inside: frozenset[str] = frozenset()
    separators: str = ""


class MarkedCalls:
    """Content and the calls in it. Up to 64 characters of space before a mark, or after the last call, belong to it.
    See ToolCallParser."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._pattern = re.compile("|".join(map(re.escape, marks.bodies)))
        self._body: CallBody | None = None
        self._prefix = ""
        """Space and mark before the body."""
        self._held = ""
        """Space, and what may be the beginning of a mark."""
        self._is_after_call = False

    def push(self, text: str) -> list[Piece]:
        """See ToolCallParser."""
        out: list[Piece] = []
        text, self._held = self._held + text, ""
        at = 0
        while at < len(text):
            if self._body is None:
                at = self._look_for_mark(text, at, out)
                continue
            at = self._read(self._body, text, at, out)
            if self._body is None and (begun := self._held):
                text, self._held, at = begun + text[at:], "", 0
        return out

    def finish(self) -> list[Piece]:
        """See ToolCallParser."""
        if self._body is None:
            held = self._held.lstrip(self._space) if self._is_after_call else self._held
        else:
            held = "" if self._body.is_begun else self._prefix + self._body.held
        self._body, self._held = None, ""
        return [Content(held)] if held else []

    @property
    def _space(self) -> str:
        return SPACE + (self._marks.separators if self._is_after_call else "")

    def _read(self, body: CallBody, text: str, at: int, out: list[Piece]) -> int:
        at = body.push(text, at, out)
        if body.is_over:
            self._body, self._is_after_call = None, body.is_begun
            # What did not belong to the body may have begun a mark.
            end = len(body.held) - _overlap(body.held, 0, self._marks.bodies)
            self._give(("" if body.is_begun else self._prefix) + body.held[:end], out)
            self._held = body.held[end:]
        return at

    def _look_for_mark(self, text: str, at: int, out: list[Piece]) -> int:
        """Returns where the text, or its next mark, ends."""
        found = self._pattern.search(text, at)
        end = len(text) - _overlap(text, at, self._marks.bodies) if found is None else found.start()
        if self._is_after_call and text[at:end].strip(self._space):
            self._is_after_call = False
        space = max(at + len(text[at:end].rstrip(self._space)), end - _MOST_SPACE)
        self._give(text[at:space], out)
        if found is None:
            self._held = text[space:]
            return len(text)
        after = found.start() if found[0] in self._marks.inside else found.end()
        self._prefix, self._body = text[space:after], self._marks.bodies[found[0]]()
        return after

    def _give(self, text: str, out: list[Piece]) -> None:
        if text:
            self._is_after_call = False
            out.append(Content(text))


def _overlap(text: str, start: int, marks: Mapping[str, Callable[[], CallBody]]) -> int:
    """How many of the last characters, from `start` on, may be the beginning of a mark, and are not all of it."""
    sizes = range(min(len(text) - start, max(map(len, marks)) - 1), 0, -1)
    return next(
        (size for size in sizes if any(size < len(mark) and mark.startswith(text[-size:]) for mark in marks)), 0
    )
