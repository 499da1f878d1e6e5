"""What waits for a slow reader is bounded."""

from __future__ import annotations

import asyncio

import pytest

from distkv.client import events
from distkv.client.events import ConnectionLost, RequestEvents
from distkv.types import TokenLogprobs
from distkv.wire.messages.to_client import RequestEnded, TokenChunk


def chunk(index: int, text: str = "") -> TokenChunk:
    return TokenChunk(request_id="r", token_ids=(index,), text=text)


async def test_events_come_in_order_also_to_one_that_waits_already() -> None:
    waiting = RequestEvents("r")
    reader = asyncio.ensure_future(waiting.get())
    await asyncio.sleep(0)
    lost = ConnectionLost("away")
    assert all(waiting.put(event) for event in (chunk(1), chunk(2), lost))
    assert [await reader, await waiting.get(), await waiting.get()] == [chunk(1), chunk(2), lost]


async def test_cancelling_a_reader_loses_nothing() -> None:
    waiting = RequestEvents("r")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting.get(), 0.001)
    waiting.put(chunk(1))
    assert await waiting.get() == chunk(1)


async def test_a_request_that_nobody_reads_ends_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_WAITING_BYTES", 10_000)
    waiting = RequestEvents("r")
    taken = 0
    while waiting.put(chunk(taken, "text")):
        taken += 1
    assert 10 < taken < 10_000 / 256
    assert not waiting.put(chunk(0))
    for index in range(taken):
        assert await waiting.get() == chunk(index, "text")
    last = await waiting.get()
    assert isinstance(last, RequestEnded) and "wait to be read here" in last.reason and not last.retryable


async def test_one_that_is_read_may_be_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_WAITING_BYTES", 10_000)
    waiting = RequestEvents("r")
    top = tuple((token, -1.0) for token in range(20))
    for index in range(1000):
        logprobs = (TokenLogprobs(token_id=index, logprob=-1.0, rank=1, top=top),)
        assert waiting.put(TokenChunk(request_id="r", token_ids=(index,), logprobs=logprobs, prompt_logprobs=(None,)))
        await waiting.get()
    assert waiting._bytes == 0
