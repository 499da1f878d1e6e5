"""Bodies that are wrong get 400 with the field's name, never 422; those that are too large 413."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from distkv.gateway.schema.body import decode
from distkv.gateway.schema.errors import ApiError
from distkv.gateway.schema.requests import INSTEAD, REFUSED_CHAT, REFUSED_COMPLETION, ChatRequest, CompletionRequest
from tests.gateway.harness import error_of

Start = Callable[..., Any]


NO_OBJECTS = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff",
    b'{"prompt": "\\ud800"}',
    b"[" * 5000,
    b'{"user": ' + b"[" * 5000,
)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_what_is_no_json_object(start: Start, path: str) -> None:
    gateway = await start()
    for body in NO_OBJECTS:
        error_of(await gateway.http.post(path, content=body), 400, None, "invalid_json")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"prompt": "\\ud800"}', "half of a surrogate pair"),
        (b'{"prompt": "x', "truncated"),
    ],
)
def test_half_a_surrogate_pair_is_not_called_a_body_that_ends_early(body: bytes, told: str) -> None:
    with pytest.raises(ApiError, match=told):
        decode(body, CompletionRequest, {})


IMPOSSIBLE: tuple[tuple[str, Any], ...] = (
    ("max_tokens", "7"),
    ("max_tokens", -1),
    ("max_tokens", 2**31),
    ("max_tokens", 2**70),
    ("max_tokens", 1.5),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("min_p", 2),
    ("n", 0),
    ("n", 129),
    ("n", True),
    ("stop", ""),
    ("stop", [""]),
    ("stop", ["x", ""]),
    ("stop", ["x"] * 65),
    ("stop", "é" * 513),
    ("stop", ["x" * 1024] * 9),
    ("stop_token_ids", [1] * 1025),
    ("logit_bias", dict.fromkeys(map(str, range(1025)), 1)),
    ("model", "x" * 257),
    ("seed", 2**63),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("logprobs", 21),
    ("best_of", 2),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("bad_words", "word"),
    ("bad_words", ["x"] * 257),
    ("bad_words", ["x" * 4097, "y" * 4096]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", list(range(1025))),
    ("skip_special_tokens", 1),
    ("include_stop_str_in_output", "yes"),
    ("truncate_prompt_tokens", -2),
    ("truncation_side", "middle"),
    ("stream_options", {"include_usage": True}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1.0": 1}),
    ("logit_bias", {str(2**31): 1}),
    ("logit_bias", {"²": 1}),
    ("logit_bias", {"9" * 5000: 1}),
)


async def test_values_that_cannot_be(start: Start) -> None:
    gateway = await start()
    for field, value in IMPOSSIBLE:
        code = "unsupported_parameter" if field == "best_of" else None
        assert field in error_of(await gateway.complete(**{field: value}), 400, field, code)
    error_of(await gateway.chat(stop=""), 400, "stop")
    assert not gateway.submits()


SENTENCES: tuple[tuple[type[msgspec.Struct], bytes, str, str], ...] = (
    (CompletionRequest, b'{"prompt": "x", "temperature": "hot"}', "temperature", 'expected `float | null`, got "hot"'),
    (CompletionRequest, b'{"prompt": "x", "temperature": -1}', "temperature", "expected `float` >= 0.0, got -1"),
    (CompletionRequest, b'{"prompt": [5, -1]}', "prompt[1]", "expected `int` >= 0, got -1"),
    (CompletionRequest, b'{"model": "x"}', "prompt", "is missing"),
    (CompletionRequest, b'{"prompt": {"a": "%s"}}' % (b"x" * 999), "prompt", 'got {"a": "' + "x" * 73 + "..."),
    (CompletionRequest, b'{"prompt": "x", "n": "%s"}' % ("é" * 999).encode(), "n", '"' + "é" * 79 + "..."),
    (CompletionRequest, b'{"prompt": "x", "stop": [%s""]}' % (b'"",' * 64), "stop", "length <= 64, got 65"),
    (CompletionRequest, b'{"prompt": "x", "stop": ["%s"]}' % (b"x" * 1025), "stop[0]", "length <= 1024, got 1025"),
    (CompletionRequest, b'{"prompt": "x", "logit_bias": {"7": 101}}', "logit_bias[...]", 'got {"7": 101}'),
    (
        CompletionRequest,
        b'{"prompt": "x", "logit_bias": {"70000000000": 1, "7": 1}}',
        "logit_bias",
        'length <= 10, got {"70000000000": 1, "7": 1}',
    ),
    (ChatRequest, b'{"messages": []}', "messages", "expected `array` of length >= 1, got []"),
    (ChatRequest, b'{"messages": [{"role": "user", "content": 5}]}', "messages[0].content", "array | null`, got 5"),
    (ChatRequest, b'{"messages": [{"content": "x"}]}', "messages[0].role", "is missing"),
    (
        ChatRequest,
        b'{"messages": [{"role": "user"}], "response_format": {"type": "json"}}',
        "response_format.type",
        """expected one of 'json_object', 'json_schema', 'text', got "json\"""",
    ),
    (
        ChatRequest,
        b'{"messages": [{"role": "user"}], "tool_choice": "any"}',
        "tool_choice",
        """expected one of 'auto', 'none', 'required', got "any\"""",
    ),
    (CompletionRequest, b'{"prompt": [%s-1]}' % (b"0, " * 2**16), f"prompt[{2**16}]", "expected `int` >= 0"),
    # The name comes twice, and what msgspec complains of is not what is there at last.
    (CompletionRequest, b'{"prompt": "x", "stop": ["a", 5], "stop": []}', "stop[1]", "expected `str`"),
    (CompletionRequest, b'{"prompt": "x", "stop": ["a", 5], "stop": "ab"}', "stop[1]", "expected `str`"),
    (CompletionRequest, b'{"prompt": "x", "stop": ["a", 5], "stop": 7}', "stop[1]", "expected `str`"),
)


@pytest.mark.parametrize(("kind", "body", "param", "told"), SENTENCES)
def test_the_message_has_what_came_and_what_was_expected(
    kind: type[msgspec.Struct], body: bytes, param: str, told: str
) -> None:
    with pytest.raises(ApiError) as caught:
        decode(body, kind, {})
    error = caught.value.body.error
    assert (caught.value.status, error.param) == (400, param)
    assert error.message.startswith(f"{param}: ") and error.message.endswith(told)


async def test_places_within_a_field_are_named(start: Start) -> None:
    gateway = await start()
    error_of(await gateway.complete(stop=["x", "y" * 1025]), 400, "stop[1]")
    error_of(await gateway.complete(logit_bias={"1": 101}), 400, "logit_bias[...]")
    error_of(await gateway.complete(stop_token_ids=[1, -1]), 400, "stop_token_ids[1]")
    error_of(
        await gateway.complete(stream=True, stream_options={"include_usage": 1}), 400, "stream_options.include_usage"
    )
    error_of(await gateway.post("/v1/completions", model="tiny"), 400, "prompt")
    error_of(await gateway.post("/detokenize"), 400, "tokens")
    error_of(await gateway.http.post("/v1/completions", content=b'{"prompt": "x", "n": 1e999}'), 400, "n")


async def test_stops_of_many_megabytes_reach_nobody(start: Start) -> None:
    gateway = await start()
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = await gateway.post(path, prompt="x", messages=[{"role": "u"}], stop=["s" * 270_000] * 64)
        assert "1024" in error_of(answer, 400, "stop[0]") and len(answer.content) < 1000
    assert not gateway.submits()


TOO_MUCH: tuple[tuple[dict[str, Any], str], ...] = (
    ({"messages": [{"role": "u"}] * 4097}, "messages"),
    ({"messages": [{"role": "u" * 257}]}, "messages[0].role"),
    ({"messages": [{"role": "u", "name": "n" * 257}]}, "messages[0].name"),
    ({"messages": [{"role": "u", "content": [{"type": "text", "text": ""}] * 4097}]}, "messages[0].content"),
    ({"chat_template_kwargs": dict.fromkeys(map(str, range(65)))}, "chat_template_kwargs"),
    ({"model": "m" * 257}, "model"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 1025, "tool_choice": "none"}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f" * 257}}]}, "tools[0].function.name"),
    ({"tool_choice": {"type": "function", "function": {"name": "f" * 257}}}, "tool_choice.function.name"),
    ({"guided_choice": ["x"] * 4097}, "guided_choice"),
    ({"messages": [{"role": "tool", "tool_call_id": "i" * 257}]}, "messages[0].tool_call_id"),
)


async def test_fields_of_chats_are_bounded(start: Start) -> None:
    gateway = await start()
    for fields, param in TOO_MUCH:
        error_of(await gateway.post("/v1/chat/completions", **({"messages": [{"role": "u"}]} | fields)), 400, param)
    answer = await gateway.complete(**dict.fromkeys(map(str, range(299))))
    assert "300 fields" in error_of(answer, 400)
    assert not gateway.submits()


WANTED: dict[str, Any] = {
    "custom_logit_processor": "{}",
    "ebnf": 'root ::= "yes"',
    "guided_whitespace_pattern": " ",
    "json_schema": '{"type": "object"}',
    "logprob_token_ids": [5],
    "lora_path": "adapter",
    "max_new_tokens": 5,
    "min_new_tokens": 5,
    "modalities": ["text", "audio"],
    "no_stop_trim": True,
    "regex": "[0-9]{5}",
    "repetition_detection": {"max_pattern_size": 3},
    "return_hidden_states": True,
    "return_token_ids": True,
    "stop_regex": "[.]",
    "suffix": "end",
    "thinking_token_budget": 0,
    "use_beam_search": True,
}


async def test_what_would_change_the_answer_is_refused(start: Start) -> None:
    gateway = await start()
    for name, value in WANTED.items():
        if name in REFUSED_COMPLETION:
            error_of(await gateway.complete(**{name: value}), 400, name, "unsupported_parameter")
        if name in REFUSED_CHAT:
            error_of(await gateway.chat(**{name: value}), 400, name, "unsupported_parameter")
    assert not gateway.submits()


async def test_what_has_another_name_here_is_refused_with_that(start: Start) -> None:
    gateway = await start()
    for body, instead in (
        ({"regex": "a"}, "guided_regex"),
        ({"ebnf": 'root ::= "a"'}, "guided_grammar"),
        ({"json_schema": "{}"}, "response_format"),
        ({"max_completion_tokens": 5}, "max_tokens"),
    ):
        (name,) = body
        said = error_of(await gateway.complete(**body), 400, name, "unsupported_parameter")
        assert said == f"{name} is not supported by this server; use {instead}"
    assert (await gateway.complete(max_tokens=1, max_completion_tokens=None)).status_code == 200
    assert (await gateway.complete(max_tokens=1, max_completion_tokens=1)).status_code == 200, "they say the same"
    assert set(INSTEAD) <= set(REFUSED_COMPLETION)


async def test_what_asks_for_nothing_is_ignored(start: Start) -> None:
    gateway = await start()
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "nonsense": 1}
    neutral = {name: values[0] for name, values in REFUSED_CHAT.items() if values} | dict.fromkeys(REFUSED_CHAT)
    answer = await gateway.chat(max_tokens=1, **harmless, **neutral)
    assert answer.status_code == 200, answer.text
    neutral = {name: values[0] for name, values in REFUSED_COMPLETION.items() if values}
    assert (await gateway.complete(max_tokens=1, **harmless, **neutral)).status_code == 200


async def test_null_is_the_default(start: Start) -> None:
    gateway = await start()
    names = ("max_tokens", "n", "stream", "stream_options", "stop", "logprobs", "temperature", "top_p", "seed", "echo")
    answer = await gateway.complete(**dict.fromkeys(names))
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_over_the_limit(start: Start, chunked: bool) -> None:
    gateway = await start(max_body_bytes=1000)
    body = json.dumps({"prompt": "x" * 1000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), 100):
            yield body[begin : begin + 100]

    answer = await gateway.http.post("/v1/completions", content=pieces() if chunked else body)
    assert "1000 bytes" in error_of(answer, 413, None, "body_too_large")
    fits = json.dumps({"prompt": "x", "max_tokens": 1, "user": "x" * 900}).encode()
    assert (await gateway.http.post("/v1/completions", content=fits)).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt": "a", "response_format": {"type": 5}, "response_format": [1]}', "response_format.type"),
        (b'{"prompt": "a", "stream_options": {"\xff": 1, "include_usage": 3}}', "stream_options.include_usage"),
    ],
)
def test_a_wrong_value_that_cannot_be_shown(body: bytes, param: str) -> None:
    """It comes twice, or beside what is no text: the field is named all the same."""
    with pytest.raises(ApiError) as refused:
        decode(body, CompletionRequest, REFUSED_COMPLETION)
    assert (refused.value.status, refused.value.body.error.param) == (400, param)


def test_a_wrong_value_beside_what_is_nested_as_deep_as_can_be() -> None:
    for depth in range(800, 1000):
        body = b'{"prompt": "a", "stream_options": {"include_usage": 3, "x": %s%s}}' % (b"[" * depth, b"]" * depth)
        with pytest.raises(ApiError) as refused:
            decode(body, CompletionRequest, REFUSED_COMPLETION)
        assert refused.value.status == 400
