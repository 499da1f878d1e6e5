"""Calls that a schema makes the model write: the output is nothing else."""

from __future__ import annotations

from collections.abc import Collection

from distkv.text.tool_calls.bodies import CallArray
from distkv.text.tool_calls.call_object import SPACE
from distkv.text.tool_calls.pieces import CallArguments, CallBegun, Content, Piece


class RequiredCalls:
    """`[{"name": ..., "parameters": {...}}, ...]`; what follows is content. See ToolCallParser."""

    def __init__(self, known: Collection[str]) -> None:
        self._array = CallArray(known)
        self._is_content = False

    def push(self, text: str) -> list[Piece]:
        """See ToolCallParser."""
        out: list[Piece] = []
        at = self._array.push(text, 0, out)
        if self._array.is_over and at < len(text):
            rest = text[at:]
            if not self._is_content:
                held = self._array.held
                rest = held + rest if held else rest.lstrip(SPACE)
            if rest:
                self._is_content = True
                out.append(Content(rest))
        return out

    def finish(self) -> list[Piece]:
        """See ToolCallParser."""
        is_lost = self._is_content or (self._array.is_begun and not self._array.is_over)
        held = "" if is_lost else self._array.held
        return [Content(held)] if held else []


class NamedCall:
    """The arguments of one function. See ToolCallParser."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_begun = False

    def push(self, text: str) -> list[Piece]:
        """See ToolCallParser."""
        if self._is_begun:
            return [CallArguments(text)]
        text = text.lstrip(SPACE)
        self._is_begun = bool(text)
        return [CallBegun(self._name), CallArguments(text)] if text else []

    def finish(self) -> list[Piece]:
        """See ToolCallParser."""
        return []
