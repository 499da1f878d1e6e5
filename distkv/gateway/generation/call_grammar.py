"""What outputs may be that have calls in them: a schema where calls are required, a grammar where they are one way to
answer and JSON by a schema is the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from distkv.gateway.generation.tool_use import NAMED, ToolUse
from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.tools import FunctionDefinition, Tool
from distkv.text.structured_output import WHITESPACE
from distkv.text.tool_calls.formats import FORMATS

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_VALUES = ("const", "enum", "default", "examples")
"""What stands under these is no schema."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Under these are schemas by names that the user chose, also those of `_VALUES`."""
_CALLS = {
    "hermes": """calls: call (SPACE? call)*
call: {open} SPACE? object SPACE? "</tool_call>"
""",
    "llama3_json": """calls: {open}? call (";" SPACE? call)*
call: object
""",
    "mistral": """calls: {open} SPACE? "[" call ("," SPACE? call)* "]"
call: object
""",
}
"""How formats write calls, after the mark that opens them."""


def schema_of_calls(use: ToolUse, tools: Collection[Tool]) -> dict[str, Any]:
    """What an output must be whose calls are required: the arguments of the one function, or a list of calls. Raises
    ApiError 400 for parameters that are no object."""
    functions = [tool.function for tool in tools if tool.function.name in use.names]
    if use.kind == NAMED:
        schema = _parameters(functions[0])
        root = "#/$defs/0"
        return schema if _is_object(schema) else _reference(schema, root) | {"$defs": {"0": _below(schema, root)}}
    call, definitions = _call(functions, "parameters")
    most = {"maxItems": 1} if use.only_one else {}
    return {"type": "array", "minItems": 1, **most, "items": call, "$defs": definitions}


def calls_or_json(
    use: ToolUse, tools: Collection[Tool], schema: dict[str, Any], special_id: Callable[[str], int | None]
) -> str:
    """The grammar, in Lark, of outputs that are calls in the format of the model, or JSON that is valid by a schema.

    special_id: of a mark that is a special token. Raises as `schema_of_calls`.
    """
    member = "parameters" if use.kind == "llama3_json" else "arguments"
    call, definitions = _call([tool.function for tool in tools], member)
    mark = FORMATS[use.kind].marks[0]
    number = special_id(mark)
    rules = _CALLS[use.kind].format(open=json.dumps(mark) if number is None else f"<[{number}]>")
    if use.only_one:
        rules = re.sub(r" \([^)]*\)\*", "", rules)
    return (
        f"start: json | calls\n{rules}SPACE: /[ \\n]{{1,2}}/\n"
        f"json: %json {_spaced(schema)}\nobject: %json {_spaced(call | {'$defs': definitions})}\n"
    )


def _spaced(schema: dict[str, Any]) -> str:
    """As JSON; so that what is valid has not any amount of whitespace."""
    return json.dumps({"x-guidance": {"whitespace_pattern": WHITESPACE}} | schema)


def _call(functions: Sequence[FunctionDefinition], member: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a call whose arguments are this member, and what it refers to."""
    schemas = {f"#/$defs/{place}": _parameters(one) for place, one in enumerate(functions)}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": one.name}, member: _reference(schema, root)},
            "required": ["name", member],
            "additionalProperties": False,
        }
        for one, (root, schema) in zip(functions, schemas.items(), strict=True)
    ]
    definitions = {str(place): _below(schema, root) for place, (root, schema) in enumerate(schemas.items())}
    return {"anyOf": calls}, definitions


def _parameters(function: FunctionDefinition) -> dict[str, Any]:
    """The schema of its arguments, which are an object also where that is not said. Raises ApiError 400."""
    schema = function.parameters or NO_ARGUMENTS
    kind = schema.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise invalid(f"tools: parameters of {function.name!r} are of type {kind!r}, expected 'object'", "tools")
    return schema


def _is_object(schema: dict[str, Any]) -> bool:
    return bool(schema.get("type") == "object")


def _reference(schema: dict[str, Any], root: str) -> dict[str, Any]:
    """To a schema that is at `root`, where only its objects count: what it says of itself, as of the end of a list, may
    be something else."""
    return {"$ref": root} | ({} if _is_object(schema) else {"type": "object"})


def _below(schema: dict[str, Any], root: str) -> dict[str, Any]:
    """The same below `root`: what refers to places within it refers to where they are now. It has no `$id`, from which
    such places would be counted again."""
    own = schema.get("$id")
    moved = _moved(schema, root, own.removesuffix("#") if isinstance(own, str) else "")
    return {key: one for key, one in moved.items() if key != "$id"}


def _moved(schema: Any, root: str, own: str) -> Any:
    """The same where references to `own`, as to nothing, are to `root`."""
    if isinstance(schema, list):
        return [_moved(one, root, own) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, one in schema.items():
        if key in _NAMED and isinstance(one, dict):
            moved[key] = {name: _moved(named, root, own) for name, named in one.items()}
        else:
            moved[key] = one if key in _VALUES else _moved(one, root, own)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        document, _, place = reference.partition("#")
        if document in ("", own) and place[:1] in ("", "/"):
            moved["$ref"] = root + place
    return moved
