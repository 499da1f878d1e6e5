"""What a request that failed leaves behind: nothing that waits for garbage to be looked for, as its body."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from distkv.client.async_client import AsyncClient
from distkv.errors import DistKVError
from distkv.gateway.api import response
from distkv.gateway.operations import held_responses
from distkv.gateway.schema.errors import ApiError
from distkv.types import SamplingParams
from tests.gateway.harness import Gateway, ends, silence, speak, until

Start = Callable[..., Any]


def serve(instance: Any, route: bytes, submit: Any) -> list[Any]:
    """By the seed of its request, to which choices add their number."""
    kinds: dict[int, Any] = {1: ends("failed", "broken"), 2: ends("refused", "no"), 3: silence}
    return kinds.get((submit.params.seed or 0) // 10, speak)(instance, route, submit)


@pytest.fixture(autouse=True)
def unlooked() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def errors() -> list[Any]:
    """Those that are there, whoever has them."""
    kinds = (ApiError, DistKVError, asyncio.CancelledError)
    return [one for one in gc.get_objects() if issubclass(type(one), kinds) and one.__traceback__ is not None]


def has_frames(name: str) -> bool:
    """Whether one of them has what a function had."""
    found = []
    for error in errors():
        trace = error.__traceback__
        while trace is not None:
            found.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
    return name in found


async def leave(gateway: Gateway) -> None:
    with suppress(httpx.TimeoutException):
        await gateway.http.post("/v1/completions", json={"prompt": "x", "seed": 30}, timeout=0.2)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": 5},
        {"model": "another"},
        {"seed": 10},
        {"seed": 20, "stream": True},
        {"temperature": -1, "x": "x" * 70_000},
    ],
)
async def test_a_request_that_is_refused_or_fails(start: Start, body: dict[str, Any], n: int) -> None:
    """The bodies of up to ten thousand were kept, of 32 MiB each."""
    gateway = await start(serve)
    answer = await gateway.complete(**{"prompt": "x", "n": n} | body)
    assert answer.status_code >= 400
    del answer
    await until(lambda: not [one for one in errors() if not isinstance(one, asyncio.CancelledError)])


async def test_a_response_that_is_too_large(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "MAX_WHOLE_BYTES", 10)
    gateway = await start(serve)
    assert (await gateway.complete("x", max_tokens=9, logprobs=2)).status_code == 400
    await until(lambda: not has_frames("_whole"))


async def test_a_response_that_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_responses, "ROOM_BYTES", 1)
    monkeypatch.setattr(held_responses, "FREE_BYTES", 1)
    gateway = await start(serve)
    assert (await gateway.complete("x", max_tokens=9, logprobs=2, n=2)).status_code == 503
    await until(lambda: not has_frames("_whole") and not has_frames("_hold_and_send"))


async def test_a_client_that_leaves(start: Start) -> None:
    gateway = await start(serve)
    await leave(gateway)
    await until(lambda: not has_frames("_whole") and not has_frames("_hold_and_send"))


async def test_a_request_of_the_python_client(start: Start) -> None:
    gateway = await start(serve)
    async with AsyncClient(gateway.fakes.address) as client:
        for seed in (10, 20):
            with suppress(DistKVError):
                await client.generate([[5], [6]], SamplingParams(seed=seed))
        request = asyncio.create_task(client.generate([[5], [6]], SamplingParams(seed=30)))
        await until(lambda: len(gateway.submits()) == 6)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        del request
        await until(lambda: not has_frames("generate"))
