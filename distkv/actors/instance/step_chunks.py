"""Chunks that a step brought for requests of one client travel in one message: a message costs more than a chunk."""

from __future__ import annotations

from collections.abc import Iterator

from distkv.control.commands import Answer
from distkv.wire.messages.to_client import TokenChunk, TokenChunks

MOST_CHUNKS = 64
MOST_TEXT = 4096
"""Characters of a chunk; with MOST_CHUNKS far below what a message may have."""


class StepChunks:
    """Of one event's commands. To each client everything goes in the order in which it was added."""

    def __init__(self) -> None:
        self._chunks: dict[bytes, list[TokenChunk]] = {}

    def add(self, answer: Answer) -> Iterator[Answer]:
        """What to send now: nothing for a chunk that can wait for others."""
        route = answer.route
        if isinstance(answer.body, TokenChunk) and _is_small(answer.body):
            waiting = self._chunks.setdefault(route, [])
            waiting.append(answer.body)
            if len(waiting) == MOST_CHUNKS:
                yield self._take(route)
            return
        if route in self._chunks:
            yield self._take(route)
        yield answer

    def rest(self) -> Iterator[Answer]:
        """What is left to send."""
        while self._chunks:
            yield self._take(next(iter(self._chunks)))

    def _take(self, route: bytes) -> Answer:
        chunks = self._chunks.pop(route)
        return Answer(route, chunks[0] if len(chunks) == 1 else TokenChunks(chunks=tuple(chunks)))


def _is_small(chunk: TokenChunk) -> bool:
    return chunk.logprobs is None and chunk.prompt_logprobs is None and len(chunk.text) <= MOST_TEXT
