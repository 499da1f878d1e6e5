"""What came for one request and waits to be read: in order, and bounded, for a user may read slowly or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import TypeGuard

from distkv.client.turns import Turns
from distkv.errors import DistKVError
from distkv.wire.messages.to_client import RequestEnded, TokenChunk

MAX_WAITING_BYTES = 64 * 2**20
"""About 200,000 chunks of a token each."""
MAX_JOINED_BYTES = 16 * 2**10
"""Of chunks that are given to a reader as one: about 50 of a token each."""

MOST_IN_A_ROW = 8
"""Events that wait already are read so many at a time before others have a turn of the event loop."""

_CHUNK_BYTES, _TOKEN_BYTES, _LOGPROB_BYTES, _TOP_BYTES = 256, 32, 128, 96


class ConnectionLost(DistKVError):
    """The other end died, was cut off, went silent or cannot be reached; `rejected` if it reads no more of us."""

    def __init__(self, why: str, *, rejected: bool = False) -> None:
        super().__init__(why)
        self.why, self.rejected = why, rejected


Event = TokenChunk | RequestEnded | ConnectionLost


class RequestEvents:
    """The events of `request_id`, ending with a last chunk, a RequestEnded or a ConnectionLost. One task reads; while
    it waits for its turn, more may come.

    envelope_id: of the envelope that the request was submitted in; empty before.
    """

    def __init__(self, request_id: str, turns: Turns) -> None:
        self.request_id = request_id
        self.envelope_id = ""
        self._turns = turns
        self._events: deque[Event] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._has_turn = False
        self._bytes = 0
        self._is_full = False
        self._in_a_row = 0

    def put(self, event: Event) -> bool:
        """Add an event; False when there is no room for it. That ends the request: nothing more is taken."""
        if self._is_full:
            return False
        self._bytes += _size(event)
        if self._bytes > MAX_WAITING_BYTES:
            self._is_full = True
            reason = f"more than {MAX_WAITING_BYTES} bytes of its output wait to be read here"
            event = RequestEnded(request_id=self.request_id, kind="failed", reason=reason)
        self._events.append(event)
        if self._reader is not None and not self._has_turn:
            self._has_turn = True
            self._turns.take(self._wake)
        return not self._is_full

    async def get(self) -> Event:
        """The next event; chunks that wait together come as one. Cancelling loses nothing."""
        self._in_a_row += 1
        if self._in_a_row > MOST_IN_A_ROW:
            self._in_a_row = 1
            await asyncio.sleep(0)
        while not self._events:
            self._in_a_row = 1
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        event = self._take()
        if not self._events or not _joins(event):
            return event
        chunks, size_bytes = [event], _size(event)
        while self._events and _joins(after := self._events[0]):
            size_bytes += _size(after)
            if size_bytes > MAX_JOINED_BYTES:
                break
            self._take()
            chunks.append(after)
        return _joined(chunks) if len(chunks) > 1 else event

    def _wake(self) -> None:
        self._has_turn = False
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _take(self) -> Event:
        event = self._events.popleft()
        self._bytes -= _size(event)
        return event


def _joins(event: Event) -> TypeGuard[TokenChunk]:
    return isinstance(event, TokenChunk) and event.prompt_logprobs is None


def _joined(chunks: Sequence[TokenChunk]) -> TokenChunk:
    """One chunk that says what several do."""
    with_logprobs = any(chunk.logprobs is not None for chunk in chunks)
    return TokenChunk(
        request_id=chunks[0].request_id,
        token_ids=tuple(chain.from_iterable(chunk.token_ids for chunk in chunks)),
        text="".join(chunk.text for chunk in chunks),
        finish_reason=chunks[-1].finish_reason,
        stop_reason=chunks[-1].stop_reason,
        prompt_tokens=chunks[-1].prompt_tokens,
        logprobs=tuple(chain.from_iterable(chunk.logprobs or () for chunk in chunks)) if with_logprobs else None,
        queue_s=next((chunk.queue_s for chunk in chunks if chunk.queue_s is not None), None),
    )


def _size(event: Event) -> int:
    """About how much memory an event takes."""
    if not isinstance(event, TokenChunk):
        return 0
    size_bytes = _CHUNK_BYTES + 4 * len(event.text) + _TOKEN_BYTES * len(event.token_ids)
    for logprobs in (event.logprobs, event.prompt_logprobs):
        if logprobs and (last := logprobs[-1]) is not None:  # all have as many likely tokens as the last one
            size_bytes += len(logprobs) * (_LOGPROB_BYTES + _TOP_BYTES * len(last.top))
    return size_bytes
