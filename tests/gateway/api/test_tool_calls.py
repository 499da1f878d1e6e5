"""Tools of a chat: what the model sees of them, and its calls as clients of OpenAI read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distkv.structured_output import StructuredOutput
from distkv.text.tokenizer import Tokenizer
from tests.gateway.harness import Gateway, error_of, says, speak
from tests.token_ids import prompt_of

Start = Callable[..., Any]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SAID = ("I look. ", "<tool", '_call>\n{"name": "get_wea', 'ther", "arguments": {"city": ', '"Paris"}}\n</tool_call>',
        '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')  # fmt: skip


async def chat(gateway: Gateway, **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS} | more
    return await gateway.post("/v1/chat/completions", **body)


def merged(deltas: list[Any]) -> list[Any]:
    """Arguments that come in several pieces in one."""
    found: list[Any] = []
    for delta in deltas:
        (call,) = delta.get("tool_calls", [{}])
        if (
            found
            and call.keys() == {"index", "function"}
            and found[-1].get("tool_calls", [{}])[0].keys() == call.keys()
        ):
            found[-1]["tool_calls"][0]["function"]["arguments"] += call["function"]["arguments"]
        else:
            found.append(delta)
    return found


async def test_tools_and_their_messages_reach_the_template(start: Start, calling: Path) -> None:
    """As openai's clients send them. Arguments are objects in templates, and answers of tools have the function's name,
    as transformers wants them."""
    gateway = await start(model=calling)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 5}'}}
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]},
        {"role": "tool", "content": "8", "tool_call_id": "c2"},
    ]
    body = {"messages": said, "tools": [WEATHER]}
    answer = await gateway.post("/v1/chat/completions", **body, max_tokens=1)
    assert answer.status_code == 200, answer.text
    shown = json.dumps(WEATHER, ensure_ascii=False).replace(', "strict": true', "")
    expected = Tokenizer.from_dir(calling).encode(
        f"{shown} <tool_call>user:hi |assistant:c1 add(5) |tool:7c1 add|assistant: now() |tool:8c2 |"
    )
    assert prompt_of(gateway.submits()[0]) == tuple(expected)
    assert (await gateway.post("/tokenize", **body)).json()["tokens"] == expected


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("{{ arguments|tojson }}", '"{ \\"x\\":"'),
        ("{% for key, value in arguments|items %}{{ key }}{% endfor %}none", "none"),
    ],
)
async def test_a_call_that_was_cut_off_may_be_sent_back(
    start: Start, tmp_path: Path, template: str, written: str
) -> None:
    """As its text, or without its arguments where the template needs an object."""
    file = tmp_path / "own.jinja"
    file.write_text("{% set arguments = messages[0].tool_calls[0].function.arguments %}" + template)
    gateway = await start(chat_template=str(file))
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{ "x":'}}
    said = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "no such x", "tool_call_id": "c1"},
    ]
    answer = await gateway.post("/tokenize", messages=said)
    assert answer.status_code == 200, answer.text
    assert answer.json() == (await gateway.post("/tokenize", prompt=written)).json()


async def test_calls_and_the_text_before_them(start: Start, calling: Path) -> None:
    gateway = await start(says(*SAID), model=calling)
    whole = (await chat(gateway)).json()
    (choice,) = whole["choices"]
    first, second = choice["message"]["tool_calls"]
    assert choice["message"] == {"role": "assistant", "content": "I look.", "tool_calls": [first, second]}
    assert choice["finish_reason"] == "tool_calls"
    assert first["type"] == "function" and re.fullmatch("call_[0-9a-f]{24}", first["id"])
    assert first["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert second["function"] == {"name": "now", "arguments": "{}"} and first["id"] != second["id"]
    assert whole["usage"]["completion_tokens"] == len(SAID)
    assert gateway.submits()[0].params.structured_output is None


async def test_calls_in_a_stream(start: Start, calling: Path) -> None:
    gateway = await start(says(*SAID), model=calling)
    *events, usage, done = await gateway.events(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        tools=TOOLS,
        stream_options={"include_usage": True},
    )
    deltas = merged([event["choices"][0]["delta"] for event in events])
    ids = [call.pop("id") for delta in deltas for call in delta.get("tool_calls", ()) if "id" in call]
    assert len(set(ids)) == 2
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "I look."},
        {"tool_calls": [{"index": 0, "type": "function", "function": {"name": "get_weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Paris"}'}}]},
        {"tool_calls": [{"index": 1, "type": "function", "function": {"name": "now", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
    ]
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["tool_calls"]
    assert usage["usage"]["completion_tokens"] == len(SAID) and done == "[DONE]"


async def test_only_calls_leave_no_content(start: Start, calling: Path) -> None:
    gateway = await start(says("\n", *SAID[1:]), model=calling)
    (choice,) = (await chat(gateway, parallel_tool_calls=False)).json()["choices"]
    assert choice["message"]["content"] is None and len(choice["message"]["tool_calls"]) == 1
    *events, _ = await gateway.events(
        "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, parallel_tool_calls=False
    )
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert {call["index"] for call in calls} == {0}


async def test_every_choice_has_its_own_calls_and_logprobs(start: Start, calling: Path) -> None:
    gateway = await start(says(*SAID), model=calling)
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "n": 2, "logprobs": True}
    whole = (await gateway.post("/v1/chat/completions", **asked)).json()
    *events, _ = await gateway.events("/v1/chat/completions", **asked)
    for choice in whole["choices"]:
        pieces = [one["choices"][0] for one in events if one["choices"][0]["index"] == choice["index"]]
        told = [token for piece in pieces if piece["logprobs"] for token in piece["logprobs"]["content"]]
        assert told == choice["logprobs"]["content"] and len(told) == len(SAID)
        calls = [call for piece in pieces for call in piece["delta"].get("tool_calls", ())]
        for index, call in enumerate(choice["message"]["tool_calls"]):
            arguments = [one["function"]["arguments"] for one in calls if one["index"] == index]
            assert "".join(arguments) == call["function"]["arguments"]
    ids = [call["id"] for choice in whole["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4 and whole["usage"]["completion_tokens"] == 2 * len(SAID)


async def test_what_is_no_call_is_content(start: Start, calling: Path) -> None:
    text = 'so <tool_call>{"name": 5}</tool_call> '
    gateway = await start(says(*text), model=calling)
    (choice,) = (await chat(gateway)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": text} and choice["finish_reason"] == "stop"
    *events, _ = await gateway.events("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], tools=TOOLS)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text


async def test_a_call_that_is_cut_off_says_so(start: Start, calling: Path) -> None:
    gateway = await start(says(*SAID[:4], finish="length"), model=calling)
    (choice,) = (await chat(gateway)).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": '


async def test_much_text_at_once_is_read_in_turns(start: Start, calling: Path) -> None:
    long = "x" * 5000
    said = f'Well, {long} <tool_call>{{"name": "now", "arguments": {{"a": "{long}"}}}}</tool_call>'
    gateway = await start(says(said), model=calling)
    (choice,) = (await chat(gateway)).json()["choices"]
    assert choice["message"]["content"] == f"Well, {long}" and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == f'{{"a": "{long}"}}'
    assert (await chat(gateway, logprobs=True)).json()["usage"]["completion_tokens"] == 1


async def test_a_call_that_is_required(start: Start, calling: Path, checkpoint: Path) -> None:
    """Also of a model that has no format of its own: a schema says what it writes."""
    for model in (calling, checkpoint):
        gateway = await start(says('[{"name": "now", ', '"parameters": {}}]'), model=model)
        (choice,) = (await chat(gateway, tool_choice="required")).json()["choices"]
        assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "now", "arguments": "{}"}
        wanted = gateway.submits()[0].params.structured_output
        assert wanted is not None and wanted.kind == "json_schema"
        assert json.loads(wanted.text)["items"]["anyOf"][0]["properties"]["name"] == {"const": "get_weather"}


async def test_one_function_that_is_named(start: Start, checkpoint: Path) -> None:
    gateway = await start(says('{"city": ', '"Paris"}'), model=checkpoint)
    (choice,) = (await chat(gateway, tool_choice=NAMED)).json()["choices"]
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    assert gateway.submits()[0].params.structured_output == StructuredOutput.json_schema(schema)


async def test_calls_or_an_answer_of_a_schema(start: Start, calling: Path) -> None:
    """With auto the model chooses; calls that are required leave no answer."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "title": "T"}}}
    for said, message in (('{"a": 1}', {"content": '{"a": 1}'}), ("".join(SAID[1:]), {"content": None})):
        gateway = await start(says(said), model=calling)
        (choice,) = (await chat(gateway, response_format=wanted)).json()["choices"]
        assert choice["message"].items() >= message.items()
        output = gateway.submits()[0].params.structured_output
        assert output is not None and output.kind == "grammar" and '"title": "T"' in output.text
    assert (await chat(gateway, response_format={"type": "json_object"})).status_code == 200
    assert (await chat(gateway, response_format={"type": "text"})).status_code == 200
    assert gateway.submits()[-1].params.structured_output is None
    assert (await chat(gateway, response_format=wanted, tool_choice="required")).status_code == 200
    output = gateway.submits()[-1].params.structured_output
    assert output is not None and output.kind == "json_schema" and '"get_weather"' in output.text


async def test_ids_as_the_format_wants_them(start: Start, calling: Path) -> None:
    gateway = await start(says("[TOOL_CALLS]now{}"), model=calling, tool_call_parser="mistral")
    (choice,) = (await chat(gateway)).json()["choices"]
    assert re.fullmatch("[0-9A-Za-z]{9}", choice["message"]["tool_calls"][0]["id"])
    assert (await chat(gateway, tool_choice="none")).json()["choices"][0]["message"]["content"] == "[TOOL_CALLS]now{}"


@pytest.fixture
def specially_marked(calling: Path, tmp_path: Path) -> Path:
    """The same with a special token for Hermes's mark."""
    for file in calling.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": 319, "content": "<tool_call>", "special": True} | flags)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return tmp_path


async def test_marks_that_are_special_tokens_are_part_of_the_text(
    start: Start, calling: Path, specially_marked: Path
) -> None:
    for model, is_special in ((calling, False), (specially_marked, True)):
        gateway = await start(speak, model=model)
        for more in ({}, {"tool_choice": "none"}, {"tools": None}, {"tool_choice": NAMED}):
            assert (await chat(gateway, max_tokens=1, **more)).status_code == 200
        skips = [submit.params.skip_special_tokens for submit in gateway.submits()]
        assert skips == [not is_special, True, True, True]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": "{}"}}]},
         "tools[0].function.parameters"),
        ({"tool_choice": {"type": "function", "function": {"name": "unheard"}}}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": NAMED, "tools": None}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"guided_regex": "x"}, "guided_regex"),
        ({"guided_choice": ["x"], "tool_choice": "required"}, "guided_choice"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "x", "parameters": {
            "type": "object", "description": "d" * 65536}}}]}, "tools"),
        ({"tool_choice": NAMED, "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "nothing"}}}]}, "tools"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "x", "parameters": {
            "type": ["string", "null"]}}}]}, "tools"),
    ],
)  # fmt: skip
async def test_what_cannot_be_called(start: Start, calling: Path, body: dict[str, Any], param: str) -> None:
    gateway = await start(model=calling)
    error_of(await chat(gateway, **body), 400, param)
    assert not gateway.submits()


async def test_a_model_without_a_format(start: Start, checkpoint: Path, calling: Path) -> None:
    for model, settings in ((checkpoint, {}), (calling, {"tool_call_parser": "none"})):
        gateway = await start(says("hi"), model=model, **settings)
        said = error_of(await chat(gateway), 400, "tools", "unsupported_parameter")
        assert "--tool-call-parser" in said and "hermes, llama3_json, mistral" in said
        error_of(await chat(gateway, tool_choice="auto"), 400, "tools", "unsupported_parameter")
        assert (await chat(gateway, tool_choice="none")).status_code == 200
        assert (await chat(gateway, tools=[])).status_code == 200
        assert (await chat(gateway, tools=None, tool_choice="auto")).status_code == 200
