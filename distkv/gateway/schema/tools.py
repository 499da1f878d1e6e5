"""What users send about tools: what there is to call, what is to be called, and what was called before."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_NAME = 256
MAX_TOOLS = 1024

Name = Annotated[str, Meta(max_length=MAX_NAME)]
FunctionName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class CalledFunction(msgspec.Struct, frozen=True):
    """The function of a tool call. arguments: an object, or its JSON."""

    name: Name
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool that the assistant made."""

    function: CalledFunction
    id: Name | None = None
    type: Literal["function"] = "function"


class FunctionDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that can be called. parameters: the JSON schema of its arguments; without one it takes none. strict
    changes nothing: arguments follow the schema where the call itself is required."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool; there are only functions."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True):
    """The function that is to be called."""

    name: FunctionName


class NamedTool(msgspec.Struct, frozen=True):
    """The tool that is to be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
ToolCalls = Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool
