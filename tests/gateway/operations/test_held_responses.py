"""Responses that are not streamed: all of them together have a bound, and who holds most gives way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from distkv.gateway.api.response import send_whole
from distkv.gateway.operations import held_responses as module
from distkv.gateway.operations.held_responses import HeldResponse, HeldResponses
from distkv.gateway.schema.errors import ApiError
from tests.gateway.harness import error_of

Start = Callable[..., Any]
PROMPT = list(range(40, 60))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldResponses:
    """With room for 100 bytes beyond what is free."""
    monkeypatch.setattr(module, "ROOM_BYTES", 100)
    return HeldResponses()


class Responding:
    """A task that holds a response until it is let go."""

    def __init__(self, held: HeldResponses, client: str) -> None:
        self._held, self._client = held, client
        self.let_go = asyncio.Event()
        self.begun: asyncio.Future[HeldResponse] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._hold())

    async def grow(self, counted_bytes: int) -> None:
        self._held.grown(await self.begun, module.FREE_BYTES + counted_bytes)

    async def _hold(self) -> None:
        async with self._held.one(self._client) as response:
            self.begun.set_result(response)
            await self.let_go.wait()


async def test_the_largest_of_who_holds_most_is_given_up(held: HeldResponses) -> None:
    large, few, many, more = (Responding(held, client) for client in ("a", "b", "b", "b"))
    for one, size_bytes in ((large, 40), (few, 10), (many, 30), (more, 20)):
        await one.grow(size_bytes)
    await large.grow(41)
    with pytest.raises(ApiError) as given_up:
        await many.task
    assert (given_up.value.status, given_up.value.body.error.code) == (503, "responses_full")
    await many.grow(50)  # what it gets before it knows counts no more
    await large.grow(70)
    others = (large, few, more)
    for one in others:
        one.let_go.set()
    await asyncio.gather(*(one.task for one in others))
    assert not held._held_bytes and not held._all


async def test_short_ones_always_find_room(held: HeldResponses) -> None:
    every = [Responding(held, "a") for _ in range(50)]
    for one in every:
        await one.grow(0)
    await every[0].grow(100)
    await every[1].grow(1)
    with pytest.raises(ApiError):
        await every[0].task
    for one in every[1:]:
        one.let_go.set()
    await asyncio.gather(*(one.task for one in every[1:]))


async def test_who_leaves_holds_nothing(held: HeldResponses) -> None:
    one = Responding(held, "a")
    await one.grow(100)
    one.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one.task
    assert not held._held_bytes and not held._all


async def test_a_request_whose_response_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREE_BYTES", 500)
    monkeypatch.setattr(module, "ROOM_BYTES", 100)
    gateway = await start()
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 2, "logprobs": 1, "n": 9}
    error_of(await gateway.complete(**body), 503, None, "responses_full")
    assert (await gateway.events("/v1/completions", **body))[-1] == "[DONE]"
    assert (await gateway.complete(PROMPT, max_tokens=1)).status_code == 200


async def endless() -> Any:
    await asyncio.Event().wait()


async def make(_: HeldResponse) -> list[bytes]:
    return [b"{}"]


def service_of(held: HeldResponses) -> Any:
    return SimpleNamespace(held=held, explain=lambda error: error)


async def test_one_that_is_being_sent_is_cut_off(held: HeldResponses) -> None:
    """A slow reader keeps it in memory: then its connection ends."""
    sent = []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            next(iter(held._all)).give_up()
            await endless()

    with capture_logs() as logs:
        await send_whole(service_of(held), "a", make, {}, endless, send)
    assert sent == ["http.response.start", "http.response.body"]
    assert [one["event"] for one in logs] == ["a response was cut off"]
    assert not held._all


async def test_one_whose_head_waits_to_be_sent_is_an_error(held: HeldResponses) -> None:
    """Nothing was sent, and uvicorn answered with a text of its own, behind the answer that the client had not read."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if held._all:
            next(iter(held._all)).give_up()
            await endless()
        sent.append(message)

    await send_whole(service_of(held), "a", make, {"type": "http"}, endless, send)
    assert [message.get("status") for message in sent] == [503, None]
    assert json.loads(sent[1]["body"])["error"]["code"] == "responses_full"


async def test_what_is_sent_counts(held: HeldResponses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a response that was collected, and what nobody collected: tokens of a text."""
    counted = []

    async def send(_: Any) -> None:
        counted.append(held._held_bytes)

    monkeypatch.setattr(module, "FREE_BYTES", 0)
    await send_whole(service_of(held), "a", make, {}, endless, send)
    assert counted == [2, 2, 2]
    assert not held._held_bytes


async def test_tokens_and_texts_are_held_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREE_BYTES", 0)
    monkeypatch.setattr(module, "ROOM_BYTES", 400)
    gateway = await start()
    assert (await gateway.post("/tokenize", prompt="x" * 9)).status_code == 200
    error_of(await gateway.post("/tokenize", prompt="x" * 999), 503, None, "responses_full")
    assert (await gateway.post("/detokenize", tokens=[50, 60])).status_code == 200
    error_of(await gateway.post("/detokenize", tokens=[50] * 999), 503, None, "responses_full")
