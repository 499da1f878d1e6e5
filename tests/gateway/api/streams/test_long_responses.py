"""Responses with many logprobs: written a few at a time, within a bound, and no different for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from distkv.gateway.api import response
from distkv.gateway.generation import choices
from distkv.gateway.generation.token_texts import TokenTexts
from distkv.gateway.schema.responses import Chat, Completion
from distkv.wire.messages.to_rmanager import Submit
from tests.client.fakes import FakeInstance
from tests.gateway.harness import FIRST, Gateway, chunk, error_of, likely
from tests.token_ids import prompt_of

Start = Callable[..., Any]
PROMPT = list(range(40, 60))


def at_once(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """All logprobs of the prompt in one chunk, then two tokens."""
    wanted = submit.params.prompt_logprobs
    found = None if wanted is None else (None, *(likely(one, wanted) for one in prompt_of(submit)[1:]))
    first = [] if found is None else [chunk(submit, prompt_logprobs=found)]
    return [*first, chunk(submit, FIRST, text="a "), chunk(submit, FIRST + 1, text="b ", finish="length")]


async def answers(gateway: Gateway) -> list[Any]:
    found = [
        await gateway.complete(PROMPT, max_tokens=2, n=2, echo=True, logprobs=2),
        await gateway.complete(PROMPT, max_tokens=2, prompt_logprobs=1),
        await gateway.complete(PROMPT, max_tokens=2, echo=True, logprobs=1, prompt_logprobs=3),
        await gateway.chat(("user", "hello " * 9), max_tokens=2, n=2, prompt_logprobs=1, logprobs=True, top_logprobs=2),
    ]
    return [one.json() | {"id": "", "created": 0} for one in found]


async def test_long_prompts_are_written_in_parts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    completion, prompt = TokenTexts.completion, TokenTexts.prompt

    def count_completion(self: TokenTexts, ids: Sequence[int], found: Sequence[Any], offset: int) -> Any:
        rows.append(len(found))
        return completion(self, ids, found, offset)

    def count_prompt(self: TokenTexts, found: Any) -> Any:
        rows.append(len(found))
        return prompt(self, found)

    monkeypatch.setattr(TokenTexts, "completion", count_completion)
    monkeypatch.setattr(TokenTexts, "prompt", count_prompt)
    gateway = await start(at_once)
    expected = await answers(gateway)
    assert max(rows) >= len(PROMPT)
    monkeypatch.setattr(choices, "MOST_ROWS", 3)
    rows.clear()
    assert await answers(gateway) == expected
    assert max(rows) == 3


async def test_the_events_of_a_stream_make_the_same(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST_ROWS", 3)
    gateway = await start(at_once)
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 2, "echo": True, "logprobs": 2}
    whole = (await gateway.complete(**body)).json()["choices"][0]
    events = [event["choices"][0] for event in (await gateway.events("/v1/completions", **body))[:-1]]
    assert "".join(event["text"] for event in events) == whole["text"]
    for name, joined in whole["logprobs"].items():
        assert [item for event in events for item in event["logprobs"][name]] == joined
    assert len(whole["logprobs"]["tokens"]) == len(PROMPT) + 2


async def test_they_are_what_the_schema_says(start: Start) -> None:
    gateway = await start(at_once)
    for kind, answer in [
        (Completion, await gateway.complete(PROMPT, n=2, max_tokens=2, echo=True, logprobs=1, prompt_logprobs=1)),
        (Completion, await gateway.complete(PROMPT, max_tokens=2)),
        (Chat, await gateway.chat(max_tokens=2, n=2, logprobs=True, top_logprobs=1, prompt_logprobs=1)),
        (Chat, await gateway.chat(max_tokens=2)),
    ]:
        known = msgspec.json.decode(answer.content, type=kind)
        assert json.loads(msgspec.json.encode(known)) == answer.json()


async def test_a_response_has_a_bound(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await start(at_once)
    monkeypatch.setattr(response, "MAX_WHOLE_BYTES", 200)
    error_of(await gateway.complete(PROMPT, max_tokens=2, prompt_logprobs=1), 400, None, "response_too_large")
    error_of(await gateway.complete(PROMPT, max_tokens=2, n=9, logprobs=1), 400, None, "response_too_large")
    error_of(await gateway.chat(max_tokens=2, prompt_logprobs=5), 400, None, "response_too_large")
    assert (await gateway.complete(PROMPT, max_tokens=2)).status_code == 200
    assert (await gateway.events("/v1/completions", prompt=PROMPT, logprobs=1, n=9))[-1] == "[DONE]"


def in_small_chunks(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """The logprobs of the prompt one by one, then a token."""
    wanted = submit.params.prompt_logprobs or 0
    found = (None, *(likely(one, wanted) for one in prompt_of(submit)[1:]))
    first = [chunk(submit, prompt_logprobs=(one,)) for one in found]
    return [*first, chunk(submit, FIRST, text="a ", finish="length")]


async def test_many_small_parts_are_not_written_in_one_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, rows_in_turns = 0, []
    prompt = TokenTexts.prompt

    def count(self: TokenTexts, found: Any) -> Any:
        rows_in_turns.append(turns)
        return prompt(self, found)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(TokenTexts, "prompt", count)
    gateway = await start(in_small_chunks)
    beside = asyncio.create_task(other())
    assert (await gateway.complete(PROMPT, max_tokens=1, prompt_logprobs=1)).status_code == 200
    beside.cancel()
    assert len(set(rows_in_turns)) == len(rows_in_turns) == len(PROMPT)
