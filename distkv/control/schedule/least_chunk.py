"""How many tokens a chunk has at least in a step that exceeds the ratio with any (docs/design.md, "Chunks beside
decodes").

A chunk makes a pass over the keys before it, however few its tokens. Where that alone takes longer than a step may,
smaller chunks make steps hardly shorter and only make more of them, and all decodes wait for each. So the least chunk
is doubled, from LEAST_TOKENS on, while that makes a token of it clearly cheaper, and while the chunk takes at most
LONGEST times as long as LEAST_TOKENS would: a step is longer than it must be by one more pass at most. Where a token
costs the same in every chunk, the least chunk stays at LEAST_TOKENS.

Two sizes are compared in steps that follow each other and one of the decodes alone, AT_ONCE steps of each, as many as
are in flight. The median of COMPARED such ratios counts, so that a machine that stalls, or whose speed changes, decides
nothing. What was found is forgotten after KEPT steps.
"""

from __future__ import annotations

import statistics

from distkv.config.groups import LEAST_CHUNK_TOKENS

LEAST_TOKENS = LEAST_CHUNK_TOKENS
"""Below it most of a chunk's cost is reading its keys once, whatever its length."""
AT_ONCE, COMPARED = 2, 3
LONGER = 4 / 3
"""Twice the tokens take less than so many times as long: two thirds of the time for each."""
LONGEST = 2.0
TRIED = 32
"""Steps until a size is kept because chunks of twice as many tokens do not come: something else bounds them."""
KEPT = 4000


class LeastChunk:
    """Of prompts with about as many tokens before the chunk."""

    def __init__(self, most: int, shorter: LeastChunk | None = None) -> None:
        """most: tokens that it may have. shorter: that of shorter contexts, whose passes take no longer; it is doubled
        from there on."""
        self._most = most
        self._found: int = shorter._found if shorter else LEAST_TOKENS
        self._times: float = shorter._times if shorter else 1.0
        self._small_s: list[float] = []
        self._large_s: list[float] = []
        self._measure = 0
        self._ratios: list[float] = []
        self._is_final = False
        self._left = TRIED
        self._limit()

    @property
    def is_compared(self) -> bool:
        """With twice as many tokens: steps of the decodes alone are needed beside those with this chunk."""
        return not self._is_final

    @property
    def is_old(self) -> bool:
        """Whether it is to be found again."""
        return self._is_final and self._left <= 0

    @property
    def tokens(self) -> int:
        """That the next one should have."""
        return 2 * self._found if len(self._small_s) >= AT_ONCE else self._found

    def counted(self, tokens: int) -> float | None:
        """As many tokens in a chunk of LEAST_TOKENS take as long as a chunk of these; None where that is not known."""
        if tokens > self._found:
            return None
        if tokens <= LEAST_TOKENS:
            return tokens
        return LEAST_TOKENS * (1 + (self._times - 1) * (tokens - LEAST_TOKENS) / (self._found - LEAST_TOKENS))

    def observe(self, tokens: int, took_s: float, measure: int) -> None:
        """A chunk of so many tokens made a step so much longer than that measure of the decodes alone."""
        self._left -= 1
        if self._is_final:
            return
        if measure != self._measure:
            self._measure = measure
            self._small_s.clear()
            self._large_s.clear()
        if tokens == self._found:
            self._small_s.append(took_s)
        elif tokens == 2 * self._found:
            self._large_s.append(took_s)
        if len(self._small_s) >= AT_ONCE and len(self._large_s) >= AT_ONCE:
            self._compare()
        if self._left <= 0:
            self._keep()

    def _compare(self) -> None:
        self._ratios.append(statistics.fmean(self._large_s) / statistics.fmean(self._small_s))
        self._small_s.clear()
        self._large_s.clear()
        if len(self._ratios) < COMPARED:
            return
        ratio = statistics.median(self._ratios)
        self._ratios.clear()
        if ratio > LONGER or ratio * self._times > LONGEST:
            self._keep()
            return
        self._times = max(1.0, ratio * self._times)
        self._found *= 2
        self._left = TRIED
        self._limit()

    def _limit(self) -> None:
        if 2 * self._found > self._most:
            self._keep()

    def _keep(self) -> None:
        self._is_final, self._left = True, KEPT
        self._small_s.clear()
