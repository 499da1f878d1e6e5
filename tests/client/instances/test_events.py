"""What waits for a slow reader is bounded."""

from __future__ import annotations

import asyncio

import pytest

from distkv.client.instances import events
from distkv.client.instances.events import ConnectionLost, RequestEvents
from distkv.client.turns import Turns
from distkv.types import TokenLogprobs
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from tests.control.parts import calls


def chunk(index: int, text: str = "") -> TokenChunk:
    return TokenChunk(request_id="r", token_ids=(index,), text=text)


async def test_events_come_in_order_also_to_one_that_waits_already() -> None:
    waiting = RequestEvents("r", Turns())
    reader = asyncio.ensure_future(waiting.get())
    await asyncio.sleep(0)
    waiting.put(chunk(1))
    assert await reader == chunk(1)
    ended, lost = RequestEnded(request_id="r", kind="failed", reason="lost"), ConnectionLost("away")
    assert all(waiting.put(event) for event in (chunk(2), ended, lost))
    assert [await waiting.get() for _ in range(3)] == [chunk(2), ended, lost]


async def test_chunks_that_wait_together_come_as_one() -> None:
    waiting = RequestEvents("r", Turns())
    logprobs = tuple(TokenLogprobs(token_id=index, logprob=-1.0, rank=1) for index in range(3))
    chunks = [
        TokenChunk(request_id="r", prompt_tokens=7, prompt_logprobs=(None, logprobs[0])),
        TokenChunk(request_id="r", token_ids=(1,), prompt_tokens=7, logprobs=logprobs[1:2], queue_s=0.5),
        TokenChunk(request_id="r", token_ids=(2,), text="two", prompt_tokens=7, logprobs=logprobs[2:]),
        TokenChunk(request_id="r", text="!", finish_reason="stop", prompt_tokens=7),
    ]
    lost = ConnectionLost("away")
    assert all(waiting.put(event) for event in (*chunks, lost))
    assert await waiting.get() == chunks[0]
    assert await waiting.get() == TokenChunk(
        request_id="r",
        token_ids=(1, 2),
        text="two!",
        finish_reason="stop",
        prompt_tokens=7,
        logprobs=logprobs[1:],
        queue_s=0.5,
    )
    assert await waiting.get() == lost
    assert waiting._bytes == 0


async def test_so_much_at_most_comes_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_JOINED_BYTES", 3 * events._size(chunk(0, "x")))
    waiting = RequestEvents("r", Turns())
    for index, text in enumerate(("x", "x", "x", "x", "long" * 1000, "x")):
        waiting.put(chunk(index, text))
    got = [await waiting.get() for _ in range(4)]
    assert [one.token_ids for one in got if isinstance(one, TokenChunk)] == [(0, 1, 2), (3,), (4,), (5,)]


async def test_cancelling_a_reader_loses_nothing() -> None:
    waiting = RequestEvents("r", Turns())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting.get(), 0.001)
    waiting.put(chunk(1))
    assert await waiting.get() == chunk(1)


async def test_a_request_that_nobody_reads_ends_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_WAITING_BYTES", 10_000)
    waiting = RequestEvents("r", Turns())
    taken = 0
    while waiting.put(chunk(taken, "text")):
        taken += 1
    assert 10 < taken < 10_000 / 256
    assert not waiting.put(chunk(0))
    read: list[int] = []
    while isinstance(last := await waiting.get(), TokenChunk):
        read.extend(last.token_ids)
    assert read == list(range(taken))
    assert isinstance(last, RequestEnded)
    assert "wait to be read here" in last.reason and not last.retryable


async def test_one_that_is_read_may_be_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_WAITING_BYTES", 10_000)
    waiting = RequestEvents("r", Turns())
    top = tuple((token, -1.0) for token in range(20))
    for index in range(1000):
        logprobs = (TokenLogprobs(token_id=index, logprob=-1.0, rank=1, top=top),)
        assert waiting.put(TokenChunk(request_id="r", token_ids=(index,), logprobs=logprobs, prompt_logprobs=(None,)))
        await waiting.get()
    assert waiting._bytes == 0


async def test_who_reads_what_waits_lets_others_have_their_turn() -> None:
    waiting = RequestEvents("r", Turns())
    turns: list[int] = []
    taken = 0

    async def other() -> None:
        while True:
            turns.append(taken)
            await asyncio.sleep(0)

    apart = [TokenChunk(request_id="r", prompt_logprobs=(None,)) for _ in range(4 * events.MOST_IN_A_ROW)]
    assert all(map(waiting.put, apart))
    beside = asyncio.ensure_future(other())
    for one in apart:
        assert await waiting.get() is one
        taken += 1
    beside.cancel()
    assert turns == [events.MOST_IN_A_ROW * turn for turn in range(1, 4)]


def test_taking_in_logprobs_of_many_tokens_costs_as_much_as_of_few() -> None:
    found = TokenLogprobs(token_id=7, logprob=-1.0, rank=1, top=((7, -1.0),))
    few, many = (
        [TokenChunk(request_id="r", prompt_logprobs=(None, *[found] * count)) for _ in range(2)] for count in (1, 4000)
    )
    assert calls(lambda: RequestEvents("r", Turns()).put(few[0])) == calls(
        lambda: RequestEvents("r", Turns()).put(many[0])
    )
    waiting = RequestEvents("r", Turns())
    assert waiting.put(many[1]) and waiting._bytes > 4000 * 200
