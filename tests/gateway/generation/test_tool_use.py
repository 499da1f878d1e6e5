"""Calls as deltas, and the schema of those that are required."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from jsonschema_rs import validator_for
from llguidance import LLMatcher, LLTokenizer

from distkv.gateway.generation.call_grammar import calls_or_json, schema_of_calls
from distkv.gateway.generation.tool_use import NAMED, REQUIRED, CallWriter, ToolUse
from distkv.gateway.schema.responses import Delta
from distkv.gateway.schema.tools import FunctionDefinition, Tool
from distkv.structured_output import StructuredOutput
from distkv.text.structured_output import check, grammar_of
from distkv.text.tool_calls.formats import FORMATS

NAMES = ("visit", "now")
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VISIT = {
    "type": "object",
    "properties": {
        "to": {"$ref": "#/$defs/Place"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "default": {"$ref": "#/$defs/Place"},
        "enum": {"type": "integer"},
    },
    "required": ["to"],
    "$defs": {"Place": PLACE},
    "default": {"$ref": "#/untouched"},
}
OTHER = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": {"type": "integer"}}}
TOOLS = [
    Tool(FunctionDefinition("visit", parameters=VISIT)),
    Tool(FunctionDefinition("now")),
    Tool(FunctionDefinition("other", parameters=OTHER)),
]


def use(kind: str, *names: str, only_one: bool = False) -> ToolUse:
    return ToolUse(kind, names or NAMES, "hermes", only_one)


def written(writer: CallWriter, *texts: str) -> list[Any]:
    """Deltas of each text, without ids."""
    found: list[list[Delta]] = []
    for place, text in enumerate(texts):
        found.append(list(writer.deltas(text, is_last=place == len(texts) - 1)))
    plain = msgspec.to_builtins(found)
    for delta in (delta for deltas in plain for delta in deltas):
        for call in delta.get("tool_calls", ()):
            call.pop("id", None)
    return plain


def test_deltas_come_as_soon_as_they_can() -> None:
    texts = ('a <tool_call>{"name": "now",', ' "arguments": {"x"', ": 1}}</tool_", "call>", "")
    begun = {"index": 0, "type": "function", "function": {"name": "now", "arguments": ""}}
    assert written(CallWriter(use("hermes")), *texts) == [
        [{"content": "a"}],
        [{"tool_calls": [begun]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]}],
        [{"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}],
        [],
        [],
    ]


def test_what_is_held_comes_with_the_end() -> None:
    writer = CallWriter(use("hermes"))
    assert written(writer, "a <tool", "_c") == [[{"content": "a"}], [{"content": " <tool_c"}]]
    assert not writer.has_called


def test_only_one_call() -> None:
    writer = CallWriter(use(REQUIRED, only_one=True))
    (deltas,) = written(writer, '[{"name": "now", "parameters": {}}, {"name": "visit", "parameters": {}}]')
    assert [call["index"] for delta in deltas for call in delta["tool_calls"]] == [0, 0] and writer.has_called


def test_the_arguments_of_one_function() -> None:
    assert schema_of_calls(use(NAMED, "visit"), TOOLS) == VISIT
    taken = schema_of_calls(use(NAMED, "now"), TOOLS)
    assert validator_for(taken).is_valid({}) and not validator_for(taken).is_valid({"x": 1})


LIST = {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
"""Its end is no object."""


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ({}, [{}], [{"x": 1}, False]),
        ({"properties": {"x": {"type": "integer"}}}, [{}, {"x": 1}], [{"x": "1"}, 7]),
        ({"type": ["object", "null"]}, [{}, {"x": 1}], [None]),
        ({"$ref": "#/$defs/X", "$defs": {"X": {"required": ["x"]}}}, [{"x": 1}], [{}, 7]),
        (LIST, [{"next": None}, {"next": {"next": None}}], [None, {}, {"next": 7}]),
    ],
)
def test_arguments_are_an_object_also_where_their_schema_does_not_say_so(
    parameters: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    tools = [Tool(FunctionDefinition("visit", parameters=parameters))]
    of_one = schema_of_calls(use(NAMED, "visit"), tools)
    of_calls = schema_of_calls(use(REQUIRED, "visit"), tools)
    for arguments in (*good, *bad):
        assert validator_for(of_one).is_valid(arguments) is (arguments in good)
        call = [{"name": "visit", "parameters": arguments}]
        assert validator_for(of_calls).is_valid(call) is (arguments in good)
    for schema in (of_one, of_calls):
        check(StructuredOutput.json_schema(schema))


@pytest.mark.parametrize("name", ["https://tools/visit", "https://tools/visit#"])
def test_a_schema_with_a_name_of_its_own(name: str) -> None:
    """What it refers to was looked for in the wrong place."""
    by_name = {"to": {"$ref": "https://tools/visit#/$defs/Place"}, "next": {"$ref": "https://tools/visit"}}
    for more in ({}, by_name):
        parameters = VISIT | {"$id": name, "properties": VISIT["properties"] | more}
        schema = schema_of_calls(use(REQUIRED, "visit"), [Tool(FunctionDefinition("visit", parameters=parameters))])
        check(StructuredOutput.json_schema(schema))
        oslo = {"to": {"city": "Oslo"}}
        for place in (oslo, oslo | {"next": oslo}, {"to": 5}, oslo | {"next": {"to": 5}}):
            is_valid = validator_for(schema).is_valid([{"name": "visit", "parameters": place}])
            assert is_valid is ("5" not in str(place))


@pytest.mark.parametrize("only_one", [False, True])
def test_a_list_of_calls(only_one: bool) -> None:
    """References of each tool's schema stay within it."""
    schema = schema_of_calls(use(REQUIRED, "visit", "now", "other", only_one=only_one), TOOLS)
    valid = validator_for(schema).is_valid
    oslo = {"name": "visit", "parameters": {"to": {"city": "Oslo"}, "next": {"to": {"city": "Bergen"}}}}
    assert (
        valid([oslo])
        and valid([{"name": "now", "parameters": {}}])
        and valid([{"name": "other", "parameters": {"x": 5}}])
    )
    assert valid([oslo, oslo]) is not only_one
    assert not valid([]) and not valid([{"name": "unheard", "parameters": {}}]) and not valid([{"name": "now"}])
    assert not valid([{"name": "visit", "parameters": {"to": {"city": "Oslo"}, "next": {"to": 5}}}])
    for place in ({"city": "Bergen"}, 5):  # a parameter may have the name of a keyword
        assert valid([{"name": "visit", "parameters": {"to": {"city": "Oslo"}, "default": place}}]) is (place != 5)
    assert not valid([{"name": "other", "parameters": {"x": {"city": "Oslo"}}}])
    assert json.loads(json.dumps(schema))["$defs"]["0"]["default"] == {"$ref": "#/untouched"}
    check(StructuredOutput.json_schema(schema))


ANSWER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
MARKS = {name: one.marks[0] for name, one in FORMATS.items()}
ONE = {
    "hermes": '<tool_call>\n{"name": "visit", "arguments": {"to": {"city": "Oslo"}}}\n</tool_call>',
    "llama3_json": '{"name": "visit", "parameters": {"to": {"city": "Oslo"}}}',
    "mistral": '[TOOL_CALLS] [{"name": "visit", "arguments": {"to": {"city": "Oslo"}}}]',
}
TWO = {
    "hermes": f"{ONE['hermes']}\n{ONE['hermes']}",
    "llama3_json": f"<|python_tag|>{ONE['llama3_json']}; {ONE['llama3_json']}",
    "mistral": ONE["mistral"].replace("]", "").replace("[TOOL_CALLS", "[TOOL_CALLS]")
    + ", "
    + ONE["mistral"].removeprefix("[TOOL_CALLS] ["),
}


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("format", list(FORMATS))
def test_calls_or_an_answer(format: str, is_special: bool) -> None:
    """The model chooses; either is valid."""

    def is_taken(text: str, **how: bool) -> bool:
        output = StructuredOutput.grammar(
            calls_or_json(use(format, **how), TOOLS, ANSWER, lambda mark: 255 if is_special else None)
        )
        check(output)
        matcher = LLMatcher(LLTokenizer("byte", slices=[]), grammar_of(output), log_level=0)
        tokens = [255 if is_special and part == MARKS[format] else byte
                  for part in re.split(f"({re.escape(MARKS[format])})", text)
                  for byte in (part.encode() if not is_special or part != MARKS[format] else b"!")]  # fmt: skip
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert is_taken('{"x": 5}') and is_taken(ONE[format]) and is_taken(TWO[format])
    assert is_taken(ONE[format], only_one=True) and not is_taken(TWO[format], only_one=True)
    assert not is_taken('{"y": 5}') and not is_taken("Well") and not is_taken(ONE[format].replace("visit", "visits"))
    assert not is_taken(ONE[format].replace('"Oslo"', "5"))
    for text, number in ((ONE[format], 1), (TWO[format], 2)):
        deltas = list(CallWriter(use(format)).deltas(text, is_last=True))
        assert [call.id is not None for delta in deltas for call in delta.tool_calls or ()].count(True) == number
