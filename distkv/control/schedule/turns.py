"""Who is first among the prompts that a step computes chunks of (docs/design.md, "Chunks beside decodes").

A long prompt takes many steps, and short ones that come after it must not wait for all of them. So the oldest is first
in one step, and in the next those that have much less left than it has. Both have at least half of the prefill: the
oldest ends within twice the time that it would take alone, and a short one waits for the short ones before it, twice
over, and for one step.
"""

from __future__ import annotations

from distkv.control.request.sequence import Sequence

MUCH_LESS = 2
"""One that has at most half as much left as the oldest goes before it. Of equal ones each would only wait for all."""


class Turns:
    """Remembers who was first in the last step that had chunks."""

    def __init__(self) -> None:
        self._first = ""

    def order(self, chunks: list[Sequence]) -> list[Sequence]:
        """In which order these, oldest first, have chunks in the next step."""
        if len(chunks) < 2:
            return chunks
        oldest, *others = chunks
        most = len(oldest.uncomputed) // MUCH_LESS
        short = sorted((seq for seq in others if len(seq.uncomputed) <= most), key=lambda seq: len(seq.uncomputed))
        rest = [seq for seq in others if len(seq.uncomputed) > most]
        return [*short, oldest, *rest] if self._first == oldest.request_id else [oldest, *short, *rest]

    def was_first(self, seq: Sequence) -> None:
        """Its chunk is the first of the step that is being planned."""
        self._first = seq.request_id
