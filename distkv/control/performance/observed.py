"""What steps were seen to take: a model of one instance that needs no profile, for whoever compares instances.

A decode step takes a base and something for each sequence in it; a token of a prompt takes what its step took beyond
its decodes. Newer steps count more, and one that stalled counts little.
"""

from __future__ import annotations

RECENT = 0.02
"""Of a new step among those of decodes."""
RECENT_TOKENS = 0.1
"""Of a new measure of what a token of a prompt takes."""
USUAL_ROWS_SHARE = 0.5
"""Of a step, what grows with its sequences, while all steps seen had equally many."""
LEAST_SPREAD = 0.01
"""Relative variance of batches from which on what a sequence costs is told from what all of them do."""
LEAST_SHARE = 0.02
"""Of a step, what its prompt tokens are taken to cost at least."""
MOST_TIMES = 4.0
"""A step that took longer than so many times the usual counts as if it had taken that."""


class ObservedTimes:
    """base_s, row_s: of a step of decodes; prompt_token_s: of a token of a prompt. 0 while none was seen."""

    def __init__(self) -> None:
        self.base_s = self.row_s = self.prompt_token_s = 0.0
        self._rows = self._seconds = self._rows_squared = self._rows_seconds = 0.0

    def decode_s(self, rows: int) -> float:
        """Seconds of a step of so many decodes; 0 if that is not known."""
        return self.base_s + self.row_s * rows

    def observe(self, decodes: int, prompt_tokens: int, compute_s: float) -> None:
        """A step of so many decodes, and so many tokens of prompts, took `compute_s`."""
        if compute_s <= 0:
            return
        if prompt_tokens:
            self._observe_prompts(decodes, prompt_tokens, compute_s)
        elif decodes:
            self._observe_decodes(decodes, compute_s)

    def _observe_decodes(self, rows: int, compute_s: float) -> None:
        weight = RECENT if self._rows else 1.0
        if known_s := self.decode_s(rows):
            compute_s = min(compute_s, MOST_TIMES * known_s)
        self._rows += weight * (rows - self._rows)
        self._seconds += weight * (compute_s - self._seconds)
        self._rows_squared += weight * (rows * rows - self._rows_squared)
        self._rows_seconds += weight * (rows * compute_s - self._rows_seconds)
        spread = self._rows_squared - self._rows * self._rows
        most_s = self._seconds / self._rows
        if spread > LEAST_SPREAD * self._rows_squared:
            self.row_s = min(most_s, max(0.0, (self._rows_seconds - self._rows * self._seconds) / spread))
        else:
            self.row_s = USUAL_ROWS_SHARE * most_s
        self.base_s = max(0.0, self._seconds - self.row_s * self._rows)

    def _observe_prompts(self, decodes: int, tokens: int, compute_s: float) -> None:
        alone_s = self.decode_s(decodes) if decodes else 0.0
        if decodes and not alone_s:
            return
        seen_s = max(compute_s - alone_s, LEAST_SHARE * compute_s) / tokens
        if not self.prompt_token_s:
            self.prompt_token_s = seen_s
        else:
            self.prompt_token_s += RECENT_TOKENS * (min(seen_s, MOST_TIMES * self.prompt_token_s) - self.prompt_token_s)
