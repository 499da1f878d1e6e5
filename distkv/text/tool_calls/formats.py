"""The formats of tool calls by name, and which of them a checkpoint writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from distkv.text.tool_calls.bodies import ArrayOrObject, ClosedObject
from distkv.text.tool_calls.call_object import CallObject
from distkv.text.tool_calls.marked import MarkedCalls, Marks
from distkv.text.tool_calls.pieces import CallBody, ToolCallParser

TOOL_CALL, END_TOOL_CALL = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"


@dataclass(frozen=True)
class Format:
    """How a family of models writes calls. marks: texts that may be special tokens, which must be part of the output's
    text then. id_length: of the ids that its chat templates take; None for any."""

    marks: tuple[str, ...]
    parser: Callable[[Collection[str]], ToolCallParser]
    id_length: int | None = None


def _hermes(known: Collection[str]) -> ToolCallParser:
    return MarkedCalls(Marks({TOOL_CALL: partial(ClosedObject, END_TOOL_CALL)}))


def _llama3(known: Collection[str]) -> ToolCallParser:
    # Without a mark, only the name tells a call from other JSON.
    bodies: dict[str, Callable[[], CallBody]] = {PYTHON_TAG: CallObject, "{": partial(CallObject, frozenset(known))}
    return MarkedCalls(Marks(bodies, inside=frozenset("{"), separators=";,"))


def _mistral(known: Collection[str]) -> ToolCallParser:
    return MarkedCalls(Marks({TOOL_CALLS: ArrayOrObject}))


FORMATS: Mapping[str, Format] = {
    "hermes": Format((TOOL_CALL, END_TOOL_CALL), _hermes),
    "llama3_json": Format((PYTHON_TAG,), _llama3),
    "mistral": Format((TOOL_CALLS, "[ARGS]", "[CALL_ID]"), _mistral, id_length=9),
}


def detected(template: str) -> str | None:
    """The format that a chat template teaches or repeats; None if it shows no tools, or in no format that is known.

    Calls in it are looked for as the templates of these families write them. Those that put XML into `<tool_call>`
    (Qwen3-Coder, GLM) write another format.
    """
    if "tools" not in template:
        return None
    if TOOL_CALLS in template:
        return "mistral"
    if TOOL_CALL in template:
        return None if "<function=" in template or "<arg_key>" in template else "hermes"
    if PYTHON_TAG in template or '{"name": function name, "parameters": ' in template:
        return "llama3_json"
    return None
