from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distkv.client.prompts import TokenIds
from distkv.gateway.api.completions import CompletionWriter
from distkv.gateway.generation.choices import Choice
from distkv.gateway.generation.token_texts import token_texts
from distkv.gateway.schema.requests import CompletionRequest
from distkv.text.tokenizer import Tokenizer
from distkv.types import Chunk, SamplingParams
from tests.gateway.harness import FIRST, Gateway, chunk, ends, error_of, speak
from tests.token_ids import prompt_of

Start = Callable[..., Any]


async def test_a_completion(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    answer = await gateway.complete("hello world", max_tokens=3)
    assert answer.status_code == 200
    body = answer.json()
    tokens = len(Tokenizer.from_dir(checkpoint).encode("hello world"))
    assert body["object"] == "text_completion" and body["model"] == "tiny" and body["created"] > 0
    assert body["id"] == "cmpl-" + answer.headers["x-request-id"]
    (choice,) = body["choices"]
    assert choice.pop("stop_reason") is None
    assert choice == {"index": 0, "text": "a b c ", "logprobs": None, "finish_reason": "length"}
    assert body["usage"] == {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}


@pytest.mark.parametrize("stop", ["end", 7, 0])
async def test_what_stopped_an_output(start: Start, stop: Any) -> None:
    """As vLLM says it, whole and in the last piece of a stream."""

    def stopped(instance: Any, route: bytes, submit: Any) -> list[Any]:
        return [chunk(submit, FIRST, text="a "), chunk(submit, FIRST, text="b", finish="stop", stop_reason=stop)]

    gateway = await start(stopped)
    for ask, path in ((gateway.complete, "/v1/completions"), (gateway.chat, "/v1/chat/completions")):
        assert (await ask(max_tokens=5)).json()["choices"][0]["stop_reason"] == stop
        asked = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
        *events, last, _done = await gateway.events(path, **asked)
        assert last["choices"][0]["stop_reason"] == stop
        assert all("stop_reason" not in event["choices"][0] for event in events)


async def test_sixteen_tokens_unless_asked_otherwise(start: Start) -> None:
    gateway = await start()
    assert (await gateway.complete()).json()["usage"]["completion_tokens"] == 16


async def test_as_many_of_the_default_as_fit(start: Start, with_defaults: Callable[..., Path]) -> None:
    """Each prompt by itself."""
    gateway = await start(max_model_len=20)
    await gateway.complete([[1] * 3, [1] * 15])
    assert sorted(submit.params.max_tokens for submit in gateway.submits()) == [5, 16]
    said = error_of(await gateway.complete([1] * 20), 400, None, "context_length_exceeded")
    assert "maximum context length is 20 tokens" in said
    await gateway.complete([1] * 40, truncate_prompt_tokens=-1)
    assert (prompt_of(gateway.submits()[-1]), gateway.submits()[-1].params.max_tokens) == ((1,) * 4, 16)
    gateway = await start(model=with_defaults(max_new_tokens=4096), max_model_len=20)
    await gateway.complete([1] * 3)
    assert gateway.submits()[-1].params.max_tokens == 17
    await gateway.complete([1] * 40, truncate_prompt_tokens=-1)
    assert (prompt_of(gateway.submits()[-1]), gateway.submits()[-1].params.max_tokens) == ((1,) * 4, 16)
    await gateway.complete([1] * 40, truncate_prompt_tokens=19)
    assert (prompt_of(gateway.submits()[-1]), gateway.submits()[-1].params.max_tokens) == ((1,) * 19, 1)
    error_of(await gateway.complete([1] * 40, truncate_prompt_tokens=20), 400, "truncate_prompt_tokens")


async def test_parameters_reach_the_instance(start: Start) -> None:
    gateway = await start()
    asked = {
        "min_tokens": 3, "bad_words": ["bad", "worse"], "allowed_token_ids": [5, 6], "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }  # fmt: skip
    assert (await gateway.complete(**asked)).status_code == 200
    assert (await gateway.complete(**dict.fromkeys(asked))).status_code == 200
    params, plain = (submit.params for submit in gateway.submits())
    assert (params.min_tokens, params.bad_words, params.allowed_token_ids) == (3, ("bad", "worse"), (5, 6))
    assert (params.skip_special_tokens, params.include_stop_str_in_output) == (False, True)
    assert plain == SamplingParams(max_tokens=16)


async def test_what_an_instance_refuses_by_name_has_its_name(start: Start) -> None:
    gateway = await start(ends("refused", "allowed_token_ids: token ids must be in [0, 9), it has 9"))
    assert "it has 9" in error_of(await gateway.complete(allowed_token_ids=[9]), 400, "allowed_token_ids")
    gateway = await start(ends("refused", "prompt: token ids must be in [0, 9), it has 9"))
    assert "it has 9" in error_of(await gateway.complete([9]), 400, "prompt")


async def test_prompts_are_cut_and_echoed_as_they_were_used(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    tokenizer = Tokenizer.from_dir(checkpoint)
    ids = tokenizer.encode("one two three four")
    asked = {"truncate_prompt_tokens": 4, "echo": True, "logprobs": 0, "max_tokens": 1}
    answer = (await gateway.complete(["one two three four", list(range(9)), [7, 8]], **asked)).json()
    prompts = [tuple(ids[-4:]), (5, 6, 7, 8), (7, 8)]
    assert sorted(map(prompt_of, gateway.submits())) == sorted(prompts)
    assert answer["choices"][0]["text"] == tokenizer.decode(ids[-4:]) + "a "
    assert answer["usage"]["prompt_tokens"] == 10
    offsets = answer["choices"][0]["logprobs"]["text_offset"]
    assert offsets[0] == 0 and offsets[-1] == len(tokenizer.decode(ids[-4:]))
    await gateway.complete([1, 2, 3], truncate_prompt_tokens=2, truncation_side="right")
    assert prompt_of(gateway.submits()[-1]) == (1, 2)
    error_of(await gateway.complete([1, 2], truncate_prompt_tokens=0), 400, "prompt")


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("text", 1), ([5, 6, 7], 1), (["one", "two", "three"], 3), ([[5, 6], [7]], 2), (["one", [7, 8]], 2)],
)
async def test_prompts_of_all_kinds(start: Start, checkpoint: Path, prompt: Any, count: int) -> None:
    gateway = await start()
    answer = (await gateway.complete(prompt, max_tokens=1, n=2)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * count))
    encode = Tokenizer.from_dir(checkpoint).encode
    each = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    expected = [tuple(encode(one) if isinstance(one, str) else one) for one in each]
    assert sorted(prompt_of(submit) for submit in gateway.submits()) == sorted(2 * expected)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert answer["usage"]["completion_tokens"] == 2 * count


def test_text_that_was_held_back_comes_without_tokens() -> None:
    """So it is sent when the time of a request runs out."""
    texts = token_texts(None, CompletionRequest(prompt=[1]))
    writer = CompletionWriter("cmpl-r", "tiny", texts, echoed=None, logprobs=None, prompt_logprobs=None)
    choice = Choice(0, 0, TokenIds([1]), SamplingParams())
    assert [piece.text for piece in writer.pieces(choice, Chunk("r", text="held"))] == ["held"]
    assert not list(writer.pieces(choice, Chunk("r")))


async def test_what_is_streamed_is_what_is_answered_whole(start: Start) -> None:
    gateway = await start()
    asked = {"prompt": ["one", "two"], "n": 2, "max_tokens": 4, "echo": True, "logprobs": 2}
    whole = (await gateway.post("/v1/completions", **asked)).json()
    events = await gateway.events("/v1/completions", **asked)
    assert events.pop() == "[DONE]"
    assert all("usage" not in one and one["object"] == "text_completion" for one in events)
    for choice in whole["choices"]:
        pieces = [one["choices"][0] for one in events if one["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
        for name, joined in choice["logprobs"].items():
            assert [item for piece in pieces for item in piece["logprobs"][name]] == joined


@pytest.mark.parametrize("always", [False, True])
async def test_a_stream_ends_with_usage_if_asked(start: Start, always: bool) -> None:
    gateway = await start()
    options = {"include_usage": True, "continuous_usage_stats": always}
    *events, last, done = await gateway.events(
        "/v1/completions", prompt=[1, 2], max_tokens=2, n=2, stream_options=options
    )
    assert done == "[DONE]" and last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    totals = [one["usage"] and one["usage"]["completion_tokens"] for one in events]
    assert totals == sorted(set(totals)) and totals[-1] == 4 if always else set(totals) == {None}


async def test_logprobs(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    answer = (await gateway.complete(max_tokens=2, logprobs=1)).json()
    found = answer["choices"][0]["logprobs"]
    tokenizer = Tokenizer.from_dir(checkpoint)
    words = [tokenizer.token_bytes(one).decode() for one in range(FIRST, FIRST + 3)]
    assert found["tokens"] == words[:2]
    assert found["token_logprobs"] == [-1.0, -1.0]
    assert found["top_logprobs"] == [{words[1]: -0.5, words[0]: -1.0}, {words[2]: -0.5, words[1]: -1.0}]
    assert found["text_offset"] == [0, len(words[0])]


async def test_logprobs_by_token_id(start: Start) -> None:
    gateway = await start()
    answer = (await gateway.complete(max_tokens=1, logprobs=1, return_tokens_as_token_ids=True)).json()
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{FIRST}"]
    assert found["top_logprobs"] == [{f"token_id:{FIRST + 1}": -0.5, f"token_id:{FIRST}": -1.0}]


@pytest.mark.parametrize("prompt", ["Füße, 東京", [40, 41, 42]])
async def test_echo(start: Start, checkpoint: Path, prompt: Any) -> None:
    gateway = await start()
    tokenizer = Tokenizer.from_dir(checkpoint)
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    choice = (await gateway.complete(prompt, max_tokens=2, echo=True)).json()["choices"][0]
    assert choice["text"] == text + "a b " and choice["logprobs"] is None
    choice = (await gateway.complete(prompt, max_tokens=2, echo=True, logprobs=1)).json()["choices"][0]
    found = choice["logprobs"]
    assert {len(items) for items in found.values()} == {len(ids) + 2}
    assert found["token_logprobs"] == [None, *[-1.0] * (len(ids) + 1)] and found["top_logprobs"][0] is None
    # Every offset is where the text of the tokens before it ends.
    ends_at = [len(tokenizer.decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids) + 1)]
    assert found["text_offset"][: len(ids) + 1][0] == 0 and found["text_offset"][len(ids)] == ends_at[-1] == len(text)


async def test_offsets_are_behind_the_names_of_special_tokens(start: Start) -> None:
    gateway = await start()
    choice = (await gateway.complete("ab<|endoftext|>cd", max_tokens=0, echo=True, logprobs=0)).json()["choices"][0]
    found = choice["logprobs"]
    assert "<|endoftext|>" in found["tokens"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"].startswith(token, offset)


async def test_echo_and_prompt_logprobs_have_each_their_number(start: Start) -> None:
    gateway = await start()
    for echoed, wanted in ((0, 3), (3, 0)):
        asked = {"max_tokens": 1, "echo": True, "logprobs": echoed, "prompt_logprobs": wanted}
        choice = (await gateway.complete([40, 41, 42], **asked)).json()["choices"][0]
        of_echo, of_prompt = choice["logprobs"]["top_logprobs"], choice["prompt_logprobs"]
        assert [len(one) for one in of_echo[1:]] == [max(1, echoed)] * 3
        assert [len(one) for one in of_prompt[1:]] == [max(1, wanted)] * 2


async def test_only_the_prompt(start: Start) -> None:
    gateway = await start()
    answer = (await gateway.complete([40, 41, 42], max_tokens=0, echo=True, logprobs=0)).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length" and len(choice["logprobs"]["tokens"]) == 3
    assert answer["usage"]["completion_tokens"] == 0 and "a" not in choice["text"].split()
    error_of(await gateway.complete(max_tokens=0), 400, "max_tokens")


async def test_prompt_logprobs(start: Start) -> None:
    gateway = await start()
    choice = (await gateway.complete([40, 41, 42], max_tokens=1, prompt_logprobs=1)).json()["choices"][0]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert {token: (one["logprob"], one["rank"]) for token, one in second.items()} == {"42": (-0.5, 1), "41": (-1.0, 2)}
    assert third.keys() == {"42", "43"} and all(isinstance(one["decoded_token"], str) for one in third.values())
    error_of(await gateway.complete(prompt_logprobs=1, stream=True), 400, "prompt_logprobs")


async def test_a_seed_is_for_the_first_choice(start: Start) -> None:
    gateway = await start()
    await gateway.complete(["one", "two"], max_tokens=1, n=3, seed=2**63 - 2)
    assert sorted(submit.params.seed for submit in gateway.submits()) == [
        0,
        0,
        2**63 - 2,
        2**63 - 2,
        2**63 - 1,
        2**63 - 1,
    ]


async def test_without_a_tokenizer_only_ids_are_prompts(start: Start, bare: Path) -> None:
    gateway: Gateway = await start(model=bare)
    choice = (await gateway.complete([1, 2], max_tokens=2, logprobs=1, echo=True)).json()["choices"][0]
    assert choice["text"] == "a b " and choice["logprobs"]["tokens"][:3] == [
        "token_id:1",
        "token_id:2",
        f"token_id:{FIRST}",
    ]
    assert "token ids" in error_of(await gateway.complete("text"), 400, "prompt")
    assert "token ids" in error_of(await gateway.chat(), 400, "messages")
    assert "token ids" in error_of(await gateway.post("/tokenize", prompt="text"), 400)


async def test_what_is_no_prompt(start: Start) -> None:
    gateway = await start()
    for prompt, says in (
        ([], "empty"),
        ([[]], "no tokens"),
        ("", "no tokens"),
        ([1, "a"], "mixes"),
        ([1, [2]], "mixes"),
    ):
        assert says in error_of(await gateway.complete(prompt), 400, "prompt")


async def test_too_many_outputs(start: Start) -> None:
    gateway = await start()
    assert "1024" in error_of(await gateway.complete([[1]] * 9, n=128), 400, "n")
    assert "1024" in error_of(await gateway.complete([[1]] * 1025), 400, "prompt")


async def test_the_first_choice_that_fails_ends_the_others(start: Start) -> None:
    refused = ends("refused", "", needed_tokens=99, pool_tokens=9)

    def first_only(instance: Any, route: bytes, submit: Any) -> list[Any]:
        return refused(instance, route, submit) if prompt_of(submit) == (2,) else []

    gateway = await start(first_only)
    error_of(await gateway.complete([[1], [2]]), 400, None, "context_length_exceeded")


async def test_a_limit_on_length(start: Start) -> None:
    gateway = await start(speak, max_model_len=8)
    assert (await gateway.complete([1] * 4, max_tokens=4)).status_code == 200
    said = error_of(await gateway.complete([1] * 4, max_tokens=5), 400, None, "context_length_exceeded")
    assert "maximum context length is 8 tokens" in said and "for a total of 9 tokens" in said
