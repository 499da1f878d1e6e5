"""Chunks as large as a step may be, as vLLM makes them: decodes first, and what is left of the step's tokens is filled
with prompts, however long the decodes then wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.control.schedule.chunking import Allowance, Chunk, Chunking


class Filling(Chunking):
    """In place of distkv's own rule, which learns what steps cost and keeps those with decodes short."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: of a step."""
        super().__init__(max_tokens, 1.0)
        self._most = max_tokens

    def allowance(self, decodes: int) -> Allowance:
        """All that is left beside so many decodes."""
        return Allowance(self, None, self._most - decodes)

    def observe(self, decodes: int, chunks: Sequence[Chunk], compute_s: float) -> None:
        """Nothing is learned."""
