"""What a parser makes of an output: its content and its calls, in pieces and in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Content:
    """More text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of this function; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that began last: the JSON of an object, as the model wrote it."""

    text: str


Piece = Content | CallBegun | CallArguments


class CallBody(Protocol):
    """What stands between the marks of a format, one call or several.

    is_begun: there is a call. is_over: no more is read, because the body is complete, or because what comes next cannot
    belong to it. held: what was read and is in no piece, unless it is the syntax of complete calls.
    """

    @property
    def is_begun(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def held(self) -> str: ...

    def push(self, text: str, start: int, out: list[Piece]) -> int:
        """Take what follows, from `start` on; returns where the body, its sound beginning, or the text ends."""


class ToolCallParser(Protocol):
    """Reads one output. What can still become a call is held back until it is one or cannot be one any more."""

    def push(self, text: str) -> list[Piece]:
        """Take what follows; the pieces that became certain."""

    def finish(self) -> list[Piece]:
        """No text follows: what was held back, as content."""
