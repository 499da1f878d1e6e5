from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distkv.text.tokenizer import Tokenizer
from tests.gateway.harness import FIRST, Gateway, chunk, ends, error_of, speak, until
from tests.token_ids import prompt_of

Start = Callable[..., Any]


async def test_a_chat(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    answer = await gateway.chat(("system", "be brief"), ("user", [{"type": "text", "text": "a"}] * 2), max_tokens=3)
    body = answer.json()
    prompt = Tokenizer.from_dir(checkpoint).encode("<|system|>be brief\n<|user|>a\na\n<|assistant|>")
    assert prompt_of(gateway.submits()[0]) == tuple(prompt)
    assert body["object"] == "chat.completion" and body["id"] == "chatcmpl-" + answer.headers["x-request-id"]
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a b c "},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 3,
        "total_tokens": len(prompt) + 3,
    }


async def test_what_is_streamed_is_what_is_answered_whole(start: Start) -> None:
    gateway = await start()
    asked = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_completion_tokens": 3}
    asked |= {"logprobs": True, "top_logprobs": 2}
    whole = (await gateway.post("/v1/chat/completions", **asked)).json()
    *events, last, done = await gateway.events("/v1/chat/completions", **asked, stream_options={"include_usage": True})
    assert done == "[DONE]" and last["choices"] == [] and last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        pieces = [one["choices"][0] for one in events if one["choices"][0]["index"] == choice["index"]]
        assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in piece["delta"] for piece in pieces[1:])
        assert "".join(piece["delta"]["content"] for piece in pieces) == choice["message"]["content"]
        assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
        told = [token for piece in pieces if piece["logprobs"] for token in piece["logprobs"]["content"]]
        assert told == choice["logprobs"]["content"] and len(told) == 3


async def test_logprobs(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    answer = (await gateway.chat(max_tokens=1, logprobs=True, top_logprobs=1)).json()
    tokenizer = Tokenizer.from_dir(checkpoint)
    (first,) = answer["choices"][0]["logprobs"]["content"]
    text, second = (tokenizer.token_bytes(one).decode() for one in (FIRST, FIRST + 1))
    most_likely = {"token": second, "logprob": -0.5, "bytes": list(second.encode())}
    assert first == {"token": text, "logprob": -1.0, "bytes": list(text.encode()), "top_logprobs": [most_likely]}
    assert error_of(await gateway.chat(top_logprobs=1), 400, "top_logprobs")
    assert error_of(await gateway.chat(logprobs=True, top_logprobs=21), 400, "top_logprobs")


async def test_prompt_logprobs(start: Start) -> None:
    gateway = await start()
    answer = (await gateway.chat(max_tokens=1, prompt_logprobs=0, n=2)).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"] and answer["prompt_logprobs"][0] is None


async def test_max_tokens_is_what_fits_unless_asked_otherwise(start: Start) -> None:
    def note(instance: Any, route: bytes, submit: Any) -> list[Any]:
        return [chunk(submit, 1, text="x", finish="stop")]

    gateway = await start(note, note)
    answer = (await gateway.chat()).json()
    pool = 2 * 64 * 16 + 1  # the KV of the last token is not needed
    assert (await gateway.http.get("/v1/models")).json()["data"][0]["max_model_len"] == pool
    assert gateway.submits()[0].params.max_tokens == pool - answer["usage"]["prompt_tokens"]
    await gateway.chat(max_tokens=7, max_completion_tokens=5)
    assert {5, pool - answer["usage"]["prompt_tokens"]} == {one.params.max_tokens for one in gateway.submits()}


async def test_at_least_so_many_tokens(start: Start) -> None:
    gateway = await start(speak, max_model_len=200)
    assert (await gateway.chat(min_tokens=20)).status_code == 200
    params = gateway.submits()[0].params
    assert (params.min_tokens, params.max_tokens > 20) == (20, True)
    error_of(await gateway.chat(min_tokens=200), 400, None, "context_length_exceeded")
    error_of(await gateway.chat(min_tokens=20, max_tokens=19), 400, "min_tokens")


async def test_a_prompt_is_cut_to_what_fits(start: Start, checkpoint: Path) -> None:
    """From its beginning unless asked otherwise; the special tokens around it stay."""
    gateway = await start(speak, max_model_len=30)
    ids = Tokenizer.from_dir(checkpoint).encode("<|user|>" + "long " * 50 + "\n<|assistant|>")
    long = ("user", "long " * 50)
    for more, expected in (
        ({"truncate_prompt_tokens": 7}, ids[-7:]),
        ({"truncate_prompt_tokens": 7, "truncation_side": "right"}, ids[:7]),
        ({"truncate_prompt_tokens": -1}, ids[-25:]),
        ({"truncate_prompt_tokens": 25}, ids[-25:]),
    ):
        assert (await gateway.chat(long, max_tokens=5, **more)).status_code == 200
        assert prompt_of(gateway.submits()[-1]) == tuple(expected)
    said = error_of(await gateway.chat(long, max_tokens=5, truncate_prompt_tokens=26), 400, "truncate_prompt_tokens")
    assert said == "truncate_prompt_tokens: 26 cannot be greater than max_model_len - max_tokens = 25"
    error_of(await gateway.chat(long, max_tokens=5, truncate_prompt_tokens=0), 400, "messages")


async def test_less_fits_when_the_pool_has_shrunk(start: Start) -> None:
    def shrunk(instance: Any, route: bytes, submit: Any) -> list[Any]:
        needed = len(prompt_of(submit)) + submit.params.max_tokens
        if needed > 100:
            return ends("refused", "", needed_tokens=needed, pool_tokens=100)(instance, route, submit)
        return speak(instance, route, submit)

    gateway = await start(shrunk)
    answer = (await gateway.chat()).json()
    assert answer["usage"]["total_tokens"] == 100
    error_of(await gateway.chat(max_tokens=200), 400, None, "context_length_exceeded")


async def test_less_fits_while_an_instance_is_gone(start: Start) -> None:
    """Where a user sets no max_tokens; others are told to come again."""

    def gone(instance: Any, route: bytes, submit: Any) -> list[Any]:
        needed = len(prompt_of(submit)) + submit.params.max_tokens
        if needed > 100:
            facts = {"retryable": True, "retry_after_s": 4.2, "needed_tokens": needed, "pool_tokens": 100}
            return ends("failed", "one is gone", **facts)(instance, route, submit)
        return speak(instance, route, submit)

    gateway = await start(gone)
    assert (await gateway.chat()).json()["usage"]["total_tokens"] == 100
    first, again = gateway.submits()
    assert again.timeout_s < first.timeout_s, "the time for both is that of one"
    answer = await gateway.chat(max_tokens=200)
    assert "one is gone" in error_of(answer, 503, None, "request_failed") and answer.headers["retry-after"] == "5"


async def holds(gateway: Gateway, tokens: int) -> bool:
    (card,) = (await gateway.http.get("/v1/models")).json()["data"]
    return bool(card["max_model_len"] == tokens)


def refuses(instance: Any, route: bytes, submit: Any) -> list[Any]:
    """As an instance that knows of no other."""
    needed = len(prompt_of(submit)) + submit.params.max_tokens
    return ends("refused", "", needed_tokens=needed, pool_tokens=32)(instance, route, submit)


async def test_a_request_that_fits_with_an_instance_that_is_gone(start: Start) -> None:
    """Refused by one that began after that, and knows of no other."""

    gateway = await start(refuses)
    (member,) = gateway.fakes.gmanager.members
    for blocks in (100, 2):
        gateway.fakes.gmanager.members = [msgspec.structs.replace(member, total_blocks=blocks, lendable_blocks=0)]
        await until(partial(holds, gateway, blocks * member.block_tokens + 1))
    problem = error_of(await gateway.chat(max_tokens=60), 503, None, "too_few_instances")
    assert problem.endswith("can give 32; others are starting, or gone and may come back")
    error_of(await gateway.chat(max_tokens=100 * member.block_tokens), 400, None, "context_length_exceeded")


async def test_a_request_that_fits_with_an_instance_that_still_loads(start: Start) -> None:
    """Nobody knows what it will bring. Once that is known, what is longer is refused for good."""

    gateway = await start(refuses)
    (member,) = gateway.fakes.gmanager.members
    ready = msgspec.structs.replace(member, total_blocks=4, lendable_blocks=2)
    loads = msgspec.structs.replace(member, instance_id="loads", state="starting", total_blocks=0, lendable_blocks=0)
    gateway.fakes.gmanager.members = [ready, loads]
    await until(partial(holds, gateway, 4 * member.block_tokens + 1))
    long = 100 * member.block_tokens
    error_of(await gateway.chat(max_tokens=long), 503, None, "too_few_instances")
    loaded = msgspec.structs.replace(loads, state="unreachable", total_blocks=4, lendable_blocks=4)
    gateway.fakes.gmanager.members = [msgspec.structs.replace(ready, total_blocks=5), loaded]
    await until(partial(holds, gateway, 5 * member.block_tokens + 1))
    error_of(await gateway.chat(max_tokens=long), 400, None, "context_length_exceeded")


async def test_a_prompt_that_fits_with_an_instance_that_is_gone(start: Start) -> None:
    gateway = await start(speak)
    (member,) = gateway.fakes.gmanager.members
    long, longer = ("user", "long " * 50), ("user", "long " * 500)
    for blocks, status in ((100, 200), (2, 503)):
        changed = msgspec.structs.replace(member, total_blocks=blocks, lendable_blocks=0)
        gateway.fakes.gmanager.members = [changed]
        tokens = blocks * member.block_tokens + 1
        await until(partial(holds, gateway, tokens))
        answer = await gateway.chat(long)
        assert answer.status_code == status
    error_of(answer, 503, None, "too_few_instances")
    error_of(await gateway.chat(longer), 400, None, "context_length_exceeded")


async def test_a_prompt_that_is_too_long(start: Start) -> None:
    gateway = await start(speak, max_model_len=20)
    error_of(await gateway.chat(("user", "long " * 50)), 400, None, "context_length_exceeded")


async def test_going_on_with_the_last_message(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    messages = [("user", "hi"), ("assistant", "I think")]
    assert (await gateway.chat(*messages, continue_final_message=True, max_tokens=1)).status_code == 200
    expected = Tokenizer.from_dir(checkpoint).encode("<|user|>hi\n<|assistant|>I think")
    assert prompt_of(gateway.submits()[0]) == tuple(expected)
    error_of(
        await gateway.chat(*messages, continue_final_message=True, add_generation_prompt=True),
        400,
        "continue_final_message",
    )
    error_of(await gateway.chat(("assistant", ""), continue_final_message=True), 400, "continue_final_message")


async def test_without_a_template_there_is_no_chat(start: Start, with_defaults: Callable[..., Path]) -> None:
    gateway = await start(model=with_defaults())
    assert "no chat template" in error_of(await gateway.chat(), 400, "messages")


async def test_a_template_of_ones_own(start: Start, tmp_path: Path, checkpoint: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages[-1].content }}{% if shout %}!{% endif %}")
    gateway = await start(chat_template=str(file))
    assert (await gateway.chat(chat_template_kwargs={"shout": True}, max_tokens=1)).status_code == 200
    assert prompt_of(gateway.submits()[0]) == tuple(Tokenizer.from_dir(checkpoint).encode("hello!"))


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_templates_see_reasoning_by_each_of_its_names(start: Start, tmp_path: Path, name: str) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% set m = messages[0] %}{{ m.reasoning }}, {{ m.reasoning_content }}, {{ m.thinking }}")
    gateway = await start(chat_template=str(file))
    messages = [{"role": "assistant", "content": "4", name: "2 + 2"}]
    answer = await gateway.post("/tokenize", messages=messages, return_token_strs=True)
    tokens = (await gateway.post("/tokenize", prompt="2 + 2, 2 + 2, 2 + 2")).json()["tokens"]
    assert answer.json()["tokens"] == tokens


async def test_reasoning_that_a_template_refuses_beside_text_and_calls(start: Start, tmp_path: Path) -> None:
    """As gpt-oss's: a conversation that an agent sends back ended there."""
    file = tmp_path / "own.jinja"
    file.write_text(
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('not both') }}"
        "{% endif %}{{ m.content }} {{ m.thinking }},{% endfor %}"
    )
    gateway = await start(chat_template=str(file))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": "a", "reasoning": "b"},
        {"role": "assistant", "content": "c", "reasoning": "d", "tool_calls": [call]},
    ]
    answer = await gateway.post("/tokenize", messages=messages)
    tokens = (await gateway.post("/tokenize", prompt="a b,c ,")).json()["tokens"]
    assert answer.json()["tokens"] == tokens


async def test_a_template_that_refuses(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(
        "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ 1 / messages[0].content|int }}"
    )
    gateway = await start(chat_template=str(file))
    assert "one at a time" in error_of(await gateway.chat(("user", "1"), ("user", "2")), 400, "messages")
    assert "division" in error_of(await gateway.chat(("user", "0")), 400, "messages")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"content": "no role"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}], "messages[0].tool_calls[0].function.name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
            "messages[0].tool_calls[0]",
        ),
        ("text", "messages"),
    ],
)
async def test_what_are_no_messages(start: Start, messages: Any, param: str) -> None:
    gateway = await start()
    error_of(await gateway.post("/v1/chat/completions", messages=messages), 400, param)


async def test_images_are_refused_in_words(start: Start) -> None:
    gateway = await start()
    parts = [
        {"type": "text", "text": "What is it?"},
        {"image_url": {"url": "data:image/png;base64,"}, "type": "image_url"},
    ]
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = await gateway.post(path, messages=[{"role": "user", "content": parts}])
        error = error_of(answer, 400, "messages[0].content[1].type", "unsupported_parameter")
        assert error.endswith("this server understands parts of type 'text' only, no images, audio or files")
