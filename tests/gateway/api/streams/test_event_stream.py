"""Streams: what breaks in the middle, and readers that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from distkv.wire.messages.to_rmanager import Cancel, Submit
from tests.gateway.harness import MODEL, chunk, ends, events_of, first_words, silence

Start = Callable[..., Any]
PATHS = {
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("retryable", "code"), [(True, "request_failed"), (False, "request_failed")])
async def test_what_fails_in_the_middle_is_an_event(start: Start, path: str, retryable: bool, code: str) -> None:
    gateway = await start(ends("failed", "lost its memory", "a ", "b ", retryable=retryable))
    *events, failure, done = await gateway.events(path, **PATHS[path])
    said = [choice.get("text") or choice.get("delta", {}).get("content", "") for (choice,) in map(_choices, events)]
    assert done == "[DONE]" and "".join(said) == "a b "
    assert failure.keys() == {"error"} and failure["error"]["code"] == code
    assert failure["error"]["type"] == "server_error" and "lost its memory" in failure["error"]["message"]


async def test_an_instance_that_dies_in_the_middle(start: Start) -> None:
    gateway = await start(first_words)
    body = {"prompt": "hello", "stream": True}
    async with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.aiter_lines()
        first = await anext(lines)
        gateway.fakes.die()
        rest = "".join([line + "\n" async for line in lines])
    said, failure, done = events_of(f"{first}\n{rest}")
    assert said["choices"][0]["text"] == "a "
    assert failure["error"]["type"] == "server_error" and done == "[DONE]"
    assert "instance i0: " in failure["error"]["message"] and "tcp" not in failure["error"]["message"]


async def test_an_answer_that_is_aborted_failed(start: Start) -> None:
    def abort(instance: Any, route: bytes, submit: Submit) -> list[Any]:
        return [chunk(submit, 40, text="a "), chunk(submit, finish="abort")]

    gateway = await start(abort)
    assert (await gateway.complete()).status_code == 503


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("stream", "serve"), [(False, silence), (True, silence), (False, first_words), (True, first_words)]
)
async def test_a_reader_that_leaves_cancels_its_request(
    start: Start, path: str, stream: bool, serve: Any, n: int
) -> None:
    gateway = await start(serve)
    body = json.dumps(PATHS[path] | {"stream": stream, "n": n}).encode()
    reader, writer = await connect(gateway.url)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    (instance,) = gateway.fakes.instances
    sent = await instance.wait_for(Submit, n)
    if stream and serve is first_words:
        assert b"200" in await reader.readline()
        await reader.readuntil(b"data: ")
    writer.close()
    await writer.wait_closed()
    cancelled = await instance.wait_for(Cancel, n)
    assert {one.request_id for one in cancelled} == {one.request_id for one in sent}
    found = await gateway.http.get("/metrics")
    assert f'distkv:request_success_total{{finished_reason="abort",model_name="{MODEL}"}} {float(n)}' in found.text


async def test_a_reader_that_is_slow_slows_only_itself(start: Start) -> None:
    """What it has not read waits here and in the sockets; others get theirs."""
    count = 1000

    def much(instance: Any, route: bytes, submit: Submit) -> list[Any]:
        if submit.params.max_tokens == 1:
            return [chunk(submit, 1, text="x", finish="length")]
        said = [chunk(submit, 1, text="x" * 3000) for _ in range(count - 1)]
        return [*said, chunk(submit, 1, text="x" * 3000, finish="length")]

    gateway = await start(much)
    body = json.dumps({"prompt": "hello", "stream": True, "max_tokens": count}).encode()
    reader, writer = await connect(gateway.url)
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
    )
    writer.write(body)
    await reader.readline()
    for _ in range(3):
        assert (await gateway.complete(max_tokens=1)).status_code == 200
    rest = await asyncio.wait_for(reader.read(), 20)
    assert rest.count(b'"text":"' + b"x" * 3000) == count and b"data: [DONE]" in rest
    writer.close()
    await writer.wait_closed()


async def test_many_streams_at_once(start: Start) -> None:
    gateway = await start(*[_echo_seed] * 2)
    found = await asyncio.gather(
        *(gateway.events("/v1/completions", prompt=[1, 2], max_tokens=8, seed=seed) for seed in range(64))
    )
    texts = ["".join(one["choices"][0]["text"] for one in events[:-1]) for events in found]
    assert texts == [f"{seed} " * 8 for seed in range(64)]


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = event["choices"]
    return choices


def _echo_seed(instance: Any, route: bytes, submit: Submit) -> list[Any]:
    last = submit.params.max_tokens - 1
    return [
        chunk(submit, 1, text=f"{submit.params.seed} ", finish="length" if index == last else None)
        for index in range(last + 1)
    ]


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that reads little ahead."""
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port), limit=4096)
