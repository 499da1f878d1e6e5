"""Tools of a request: which calls its outputs may have, and how they are read and written."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator

import msgspec

from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.requests import ChatRequest
from distkv.gateway.schema.responses import Delta, DeltaFunction, DeltaToolCall
from distkv.gateway.schema.tools import NamedTool
from distkv.text.tool_calls.constrained import NamedCall, RequiredCalls
from distkv.text.tool_calls.formats import FORMATS
from distkv.text.tool_calls.pieces import CallArguments, CallBegun, Content, Piece, ToolCallParser

REQUIRED, NAMED = "required", "named"
_ALPHANUMERIC = string.ascii_letters + string.digits


class ToolUse(msgspec.Struct, frozen=True):
    """How the calls of a request are read. kind: the format that the model writes, or "required" or "named", where a
    schema says what it writes. names: of the tools that may be called. format: of the model, None if it has none."""

    kind: str
    names: tuple[str, ...]
    format: str | None
    only_one: bool

    @property
    def is_required(self) -> bool:
        """Whether an output is nothing but calls."""
        return self.kind in (REQUIRED, NAMED)

    def parser(self) -> ToolCallParser:
        """For one output."""
        if self.kind == REQUIRED:
            return RequiredCalls(self.names)
        return NamedCall(self.names[0]) if self.kind == NAMED else FORMATS[self.kind].parser(self.names)


def tool_use(body: ChatRequest, format: str | None) -> ToolUse | None:
    """None if no tool may be called. Raises ApiError 400 for tools that cannot be."""
    tools, choice, only_one = body.tools or [], body.tool_choice, body.parallel_tool_calls is False
    names = tuple(tool.function.name for tool in tools)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid(f"tools: {twice!r} is there more than once", "tools")
    if not tools and (choice == "required" or isinstance(choice, NamedTool)):
        raise invalid("tool_choice: there are no tools to call", "tool_choice")
    if not tools or choice == "none":
        return None
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise invalid(f"tool_choice: there is no tool {choice.function.name!r}", "tool_choice")
        return ToolUse(NAMED, (choice.function.name,), format, only_one)
    if choice == "required":
        return ToolUse(REQUIRED, names, format, only_one)
    if format is None:
        problem = (
            "tools: the chat template of this model shows no tool calls in a format that is known; --tool-call-parser "
            f"of the gateway says which it writes ({', '.join(FORMATS)}); tool_choice required, or a named function, "
            "needs none"
        )
        raise invalid(problem, "tools", "unsupported_parameter")
    return ToolUse(format, names, format, only_one)


class CallWriter:
    """Writes one output with its calls as deltas of a stream. has_called: whether it has had one."""

    def __init__(self, use: ToolUse) -> None:
        self._parser = use.parser()
        self._only_one = use.only_one
        self._id_length = None if use.format is None else FORMATS[use.format].id_length
        self._calls = 0

    @property
    def has_called(self) -> bool:
        """See the class."""
        return self._calls > 0

    def deltas(self, text: str, *, is_last: bool) -> Iterator[Delta]:
        """What this text adds."""
        pieces = self._parser.push(text)
        for piece in [*pieces, *self._parser.finish()] if is_last else pieces:
            delta = self._delta(piece)
            if delta is not None:
                yield delta

    def _delta(self, piece: Piece) -> Delta | None:
        if isinstance(piece, Content):
            return Delta(content=piece.text)
        if isinstance(piece, CallBegun):
            self._calls += 1
        if self._only_one and self._calls > 1:
            return None
        index = self._calls - 1
        match piece:
            case CallBegun(name):
                function = DeltaFunction(name=name, arguments="")
                return Delta(tool_calls=[DeltaToolCall(index=index, id=self._id(), type="function", function=function)])
            case CallArguments(text):
                return Delta(tool_calls=[DeltaToolCall(index=index, function=DeltaFunction(arguments=text))])

    def _id(self) -> str:
        if self._id_length is None:
            return f"call_{secrets.token_hex(12)}"
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(self._id_length))
