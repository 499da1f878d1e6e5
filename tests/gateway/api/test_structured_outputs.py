"""What outputs must be: every way to say it becomes the same constraint for the cluster, or an error that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distkv.gateway.prompting import readers
from distkv.structured_output import MAX_BYTES, StructuredOutput
from distkv.text import grammar_checker
from distkv.text.grammar_checker import GrammarChecker
from tests.gateway.harness import ends, error_of, says

Start = Callable[..., Any]

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
TEXT = json.dumps(SCHEMA)
GRAMMAR = 'start: "yes" | "no"'
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
WAYS: list[tuple[dict[str, Any], StructuredOutput | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutput.json_object()),
    ({"response_format": JSON_SCHEMA}, StructuredOutput.json_schema(SCHEMA)),
    ({"guided_json": SCHEMA}, StructuredOutput.json_schema(SCHEMA)),
    ({"guided_json": TEXT}, StructuredOutput.json_schema(TEXT)),
    ({"guided_regex": "[ab]+"}, StructuredOutput.regex("[ab]+")),
    ({"guided_choice": ["yes", "no"]}, StructuredOutput.choice(["yes", "no"])),
    ({"guided_grammar": GRAMMAR}, StructuredOutput.grammar(GRAMMAR)),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutput.json_schema(SCHEMA)),
    ({"structured_outputs": {"json": TEXT, "regex": None}}, StructuredOutput.json_schema(TEXT)),
    ({"structured_outputs": {"json_object": True}}, StructuredOutput.json_object()),
    ({"structured_outputs": {"regex": "[ab]+"}}, StructuredOutput.regex("[ab]+")),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, StructuredOutput.choice(["yes", "no"])),
    ({"structured_outputs": {"grammar": GRAMMAR}}, StructuredOutput.grammar(GRAMMAR)),
    ({"structured_outputs": {"disable_any_whitespace": False, "disable_fallback": True}}, None),
    ({"guided_json": SCHEMA, "response_format": {"type": "text"}}, StructuredOutput.json_schema(SCHEMA)),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, StructuredOutput.json_schema(SCHEMA)),
    ({"response_format": {"type": "json_object", "schema": None}}, StructuredOutput.json_object()),
    (
        {"structured_outputs": {"regex": "[ab]+", "_backend": None, "_backend_was_auto": False}},
        StructuredOutput.regex("[ab]+"),
    ),
]


async def test_every_way_to_say_it(start: Start) -> None:
    gateway = await start(says("{}"))
    for body, expected in WAYS:
        for ask in (gateway.complete, gateway.chat):
            answer = await ask(**body)
            assert answer.status_code == 200, answer.text
            assert gateway.submits()[-1].params.structured_output == expected
    whole = (await gateway.chat(response_format=JSON_SCHEMA)).json()["choices"][0]
    assert whole["message"] == {"role": "assistant", "content": "{}"} and whole["finish_reason"] == "stop"


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", None),
    ({"response_format": "json"}, "response_format", None),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        None,
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
        "response_format",
        None,
    ),
    ({"response_format": {"type": "json_object", "schema": {"type": "nothing"}}}, "response_format", None),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", None),
    ({"guided_json": "{"}, "guided_json", None),
    ({"guided_json": {"pattern": "x" * MAX_BYTES}}, "guided_json", None),
    ({"guided_regex": "("}, "guided_regex", None),
    ({"guided_regex": ""}, "guided_regex", None),
    ({"guided_choice": []}, "guided_choice", None),
    ({"guided_choice": [""]}, "guided_choice", None),
    ({"guided_choice": "yes"}, "guided_choice", None),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar", None),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", None),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", None),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", None),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", None),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "unsupported_parameter"),
    (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
        "unsupported_parameter",
    ),
]


async def test_what_no_output_can_be(start: Start) -> None:
    gateway = await start()
    for body, param, code in WRONG:
        for ask in (gateway.complete, gateway.chat):
            said = error_of(await ask(**body), 400, param, code)
            assert said.startswith(param) and len(said) < 1000
    assert not gateway.submits()


async def test_a_model_without_a_tokenizer_has_no_text(start: Start, bare: Path) -> None:
    gateway = await start(model=bare)
    said = error_of(await gateway.complete([1, 2], guided_regex="a"), 400, "guided_regex")
    assert "no tokenizer" in said


async def test_what_was_found_right_is_not_looked_at_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[StructuredOutput] = []
    monkeypatch.setattr(GrammarChecker, "_ask", lambda checker, output: looked_at.append(output))
    monkeypatch.setattr(grammar_checker, "REMEMBERED", 2)
    gateway = await start(says("a"))
    for pattern in ("a", "b", "a", "c", "a", "b"):
        assert (await gateway.complete(guided_regex=pattern)).status_code == 200
    assert looked_at == [StructuredOutput.regex(one) for one in ("a", "b", "c", "b")]


async def test_long_bodies_say_it_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "SHORT_BYTES", 0)
    gateway = await start(says("{}"))
    for body, expected in WAYS[:4]:
        assert (await gateway.chat(**body)).status_code == 200
        assert gateway.submits()[-1].params.structured_output == expected
    error_of(await gateway.chat(guided_regex="("), 400, "guided_regex")


async def test_an_output_that_turns_out_to_be_impossible_is_the_requests_fault(start: Start) -> None:
    """A client tries again after a 500, in vain. It knows the field by the name that it used."""
    gateway = await start(ends("refused", "structured_output: expected a choice (structured_output: leaves no token)"))
    for ask, body, param in (
        (gateway.complete, {"guided_choice": ["yes"]}, "guided_choice"),
        (gateway.complete, {"structured_outputs": {"regex": "a"}, "n": 2}, "structured_outputs.regex"),
        (gateway.chat, {"response_format": {"type": "json_object"}}, "response_format"),
    ):
        said = error_of(await ask(**body, allowed_token_ids=[5]), 400, param)
        assert said == f"{param}: expected a choice ({param}: leaves no token)"
    error_of(await gateway.complete(guided_regex="b", stream=True), 400, "guided_regex")
