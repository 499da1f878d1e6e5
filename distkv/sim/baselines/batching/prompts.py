"""How an instance that batches for itself puts prompts into steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from distkv.config import ControlSettings
from distkv.control.schedule.chunking import Allowance, Chunk, Chunking

Prompts = Literal["short", "filling", "alone"]
"""short: chunks as distkv's own scheduler sizes them, so that decodes go on beside them. filling: decodes first, and
what is left of a step's tokens is filled with prompts, as vLLM does with chunked prefill. alone: prompts first, in
steps that nothing decodes in and that have as many whole ones as fit, as vLLM does without it; a step's tokens are then
as many as the longest prompt has, for only one that exceeds them is cut."""


def chunking_of(prompts: Prompts, settings: ControlSettings) -> Chunking:
    """The rule for how large chunks are."""
    most = settings.max_num_batched_tokens
    return Chunking(most, settings.mixed_step_ratio) if prompts == "short" else Filling(most)


class Filling(Chunking):
    """Chunks as large as a step may be, however long decodes then wait for it."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: of a step."""
        super().__init__(max_tokens, 1.0)
        self._most = max_tokens

    def allowance(self, decodes: int) -> Allowance:
        """All that is left beside so many decodes."""
        return Allowance(self, None, self._most - decodes)

    def observe(self, decodes: int, chunks: Sequence[Chunk], compute_s: float) -> None:
        """Nothing is learned."""
