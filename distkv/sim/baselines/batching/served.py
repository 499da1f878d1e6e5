"""A request on its way through instances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distkv.sim.outcome import Outcome


@dataclass(slots=True, eq=False)
class Served:
    """outcome: what becomes of it. due_s: when it arrived. order: its place among all by that. began_s: when its
    prompt began to be computed for the first time. computed: its tokens
    whose keys and values are in memory. generated: tokens that it got. blocks: rBlocks that it has where it runs.
    lives: how many times its keys and values were dropped. tries: how many times it was sent to an instance to begin.
    at: the instance where it is, by name; empty while it is nowhere. is_over: whether nothing more becomes of it."""

    outcome: Outcome
    due_s: float
    order: int
    began_s: float | None = None
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    lives: int = 0
    tries: int = 0
    at: str = ""
    is_over: bool = False

    @property
    def length(self) -> int:
        """Tokens that are known of it."""
        return self.outcome.request.prompt_tokens + self.generated

    @property
    def left(self) -> int:
        """Tokens that it is still to get."""
        return self.outcome.request.output_tokens - self.generated

    @property
    def is_decoding(self) -> bool:
        """Whether one token is left to compute."""
        return self.length - self.computed == 1

    def note(self, times_s: Iterable[float]) -> None:
        """It got tokens, at these times."""
        if not self.is_over:
            due_s = self.due_s
            self.outcome.times_s.extend([at_s - due_s for at_s in times_s])
