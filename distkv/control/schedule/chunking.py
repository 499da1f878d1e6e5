"""How much prefill goes into a step beside running decodes.

A decode waits for the whole step that it is in, so a chunk of prefill stretches the time between its tokens. As in
Sarathi-Serve (Agrawal et al., OSDI 2024), chunks beside decodes are therefore small: as many tokens as keep the step
within `ratio` times a step of the decodes alone. What both cost is learned from the steps themselves, so that it holds
for any model, machine, batch and context:

- The decodes alone: the mean of recent steps without chunks. While chunks go on, every MEASURE_EVERY-th step has none,
  and one has none when the number of decodes changed much; so the measure is never old.
- A token of a chunk: what a step took beyond that, per token, by the power of two of its context, because attention
  over more keys costs more. What is not known of a longer context is expected from a shorter one in proportion.

Estimates are exponential means of bounded corrections, so that one stalled step moves them little. Chunks grow slowly
beyond the largest so far, because small ones may ride free on weights that are read anyway. Steps aim below `ratio`, by
as much as lets one in a hundred take longer: less on a steady machine than on one whose steps vary.

A step has at least one chunk of LEAST_TOKENS, so that prefill ends. Where already that one exceeds the ratio, for one
pass over the keys takes longer than all decodes or because the ratio is tight, it has as many tokens as `least_chunk`
finds to be worth their pass: it makes the step longer by at most twice what LEAST_TOKENS would. What it takes is
counted in tokens of a chunk of LEAST_TOKENS, so estimates say what these cost, and when the ratio can be kept again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distkv.control.schedule.least_chunk import AT_ONCE, LEAST_TOKENS, LeastChunk

LEAST_GRAIN = 4
SIZES = 4
"""From one power of two to the next, no closer than LEAST_GRAIN. Few, because the first step of a size not seen before
takes longer; enough, because what a size is short of the time allowed for is lost."""
MEASURE_EVERY = 16
MEASURE_COMPARED = 2 * AT_ONCE
"""While two sizes of the least chunk are compared, each time beside a new measure."""
MEASURE_SPACING = 8
"""Steps between two that are measured because the decodes changed."""
MEASURE_AT_ONCE = 2
"""Steps in flight: the first that is measured is answered after so many."""
CHANGED = 0.25
AIM, LOWEST_AIM, HIGHEST_AIM = 0.85, 0.8, 0.95
"""Of `ratio`: what steps aim at first, at least and at most, so that those that took longer than expected are within it
too."""
OVER = 0.01
"""Share of the steps that may take longer than `ratio`."""
AIM_STEP = 0.04
"""What a step that did lowers the aim by; all others raise it as much together."""
WEIGHT = 0.5
"""Of a new measure of the decodes."""
DOUBTFUL = 1.5
"""A measure so many times the last ones may be a stall: the less of it and the next one counts."""
DEARER, CHEAPER = 0.5, 0.15
"""Of a chunk that cost more than was expected, and of one that cost less."""
MOST_CORRECTION = 4.0
GROWTH = 1.5
SHORT_TOKENS = 1024
"""Contexts below it cost alike."""
LEAST_SHARE = 0.02
"""Of a step of decodes: what a chunk is taken to cost at least."""

Chunk = tuple[int, int]
"""Its first position and the position after its last."""


@dataclass(slots=True)
class Allowance:
    """What chunks the step being planned may have. left_s: time for them; None without a limit."""

    _chunking: Chunking
    _left_s: float | None
    _left_tokens: int
    _is_first: bool = True

    def tokens(self, start: int) -> int:
        """The most a chunk that begins at `start` may have."""
        if self._left_s is None:
            return self._left_tokens
        tokens = _size(int(self._left_s / self._chunking.token_s(start)))
        if self._is_first and tokens < LEAST_TOKENS:
            tokens = self._chunking.least(start).tokens
        return min(self._left_tokens, tokens)

    def spend(self, start: int, end: int) -> None:
        """A chunk is in the step."""
        self._is_first = False
        self._left_tokens -= end - start
        if self._left_s is not None:
            self._left_s = max(0.0, self._left_s - (end - start) * self._chunking.token_s(start))


class Chunking:
    """Learns what steps cost and says what the next one may hold."""

    def __init__(self, max_tokens: int, ratio: float) -> None:
        """max_tokens: of a step. ratio: longest step of decodes and chunks, in times one of the decodes alone."""
        self._max_tokens = max_tokens
        self._ratio, self._aim = ratio, AIM
        self._decodes_s = 0.0
        self._measured_s = 0.0
        self._measures = 0
        self._doubtful_s = 0.0
        self._decodes = 0
        self._token_s: dict[int, float] = {}
        self._least: dict[int, LeastChunk] = {}
        self._compares = False
        self._largest = LEAST_TOKENS
        self._is_timed = False
        self._since_measured = 0
        self._withheld = 0

    @property
    def _excess(self) -> float:
        """Time for chunks, in times a step of the decodes alone."""
        return max(0.0, self._aim * self._ratio - 1)

    def allowance(self, decodes: int) -> Allowance:
        """For a step with so many decodes in it."""
        most = self._max_tokens - decodes
        if not decodes or not self._is_timed:
            return Allowance(self, None, most)
        if self._must_measure(decodes):
            self._withheld += 1
            return Allowance(self, None, 0)
        self._withheld = 0
        if not self._decodes_s:  # those that were to be measured were not timed
            return Allowance(self, None, most)
        most = min(most, _size(int(self._largest * GROWTH)))
        return Allowance(self, self._excess * self._decodes_s, most)

    def token_s(self, start: int) -> float:
        """Seconds that a token of a chunk adds to a step, with so many tokens before the chunk."""
        place = _place(start)
        if (known := self._token_s.get(place)) is not None:
            return known
        if below := [other for other in self._token_s if other < place]:
            nearest = max(below)
            return self._token_s[nearest] * 2.0 ** (place - nearest)
        # A longer context costs no less.
        if self._token_s:
            return self._token_s[min(self._token_s)]
        return max(self._excess, LEAST_SHARE) * self._decodes_s / LEAST_TOKENS

    def least(self, start: int) -> LeastChunk:
        """The least chunk with so many tokens before it, where any exceeds the ratio."""
        place = _place(start)
        found = self._least.get(place)
        if found is None:
            below = [other for other in self._least if other < place]
            shorter = self._least[max(below)] if below else None
            found = self._least[place] = LeastChunk(self._max_tokens // 2, shorter)
        elif found.is_old:
            found = self._least[place] = LeastChunk(self._max_tokens // 2)
        return found

    def observe(self, decodes: int, chunks: Sequence[Chunk], compute_s: float) -> None:
        """A step with so many decodes and these chunks took `compute_s`, 0 if that is not known."""
        if compute_s <= 0:
            return
        self._is_timed = True
        if not decodes:
            return
        if chunks:
            self._since_measured += 1
            self._observe_chunks(chunks, compute_s)
        else:
            self._observe_decodes(decodes, compute_s)

    def _exceeds(self, start: int) -> bool:
        """Whether the smallest chunk makes a step exceed the ratio, with so many tokens before it."""
        return self._excess * self._decodes_s < LEAST_TOKENS * self.token_s(start)

    def _must_measure(self, decodes: int) -> bool:
        if self._withheld >= MEASURE_AT_ONCE:
            return False
        if not self._decodes_s:
            return True
        if self._withheld:
            return False
        if self._has_changed(decodes):
            return self._since_measured >= MEASURE_SPACING
        return self._since_measured >= (MEASURE_COMPARED if self._compares else MEASURE_EVERY)

    def _has_changed(self, decodes: int) -> bool:
        return abs(decodes - self._decodes) > CHANGED * self._decodes

    def _observe_decodes(self, decodes: int, compute_s: float) -> None:
        self._measured_s = compute_s
        self._measures += 1
        if not self._decodes_s or self._has_changed(decodes):
            self._decodes_s = compute_s
        elif compute_s > DOUBTFUL * self._decodes_s and not self._doubtful_s:
            # Measured again at once.
            self._doubtful_s = compute_s
            return
        else:
            seen_s = min(compute_s, self._doubtful_s or compute_s)
            self._decodes_s *= _correction(seen_s / self._decodes_s, WEIGHT)
        self._decodes, self._since_measured, self._doubtful_s = decodes, 0, 0.0

    def _observe_chunks(self, chunks: Sequence[Chunk], compute_s: float) -> None:
        tokens = sum(end - start for start, end in chunks)
        self._largest = max(self._largest, tokens)
        if not self._decodes_s:
            return
        self._adapt_aim(is_over=compute_s > self._ratio * self._decodes_s)
        chunk_s = max(compute_s - self._decodes_s, LEAST_SHARE * self._decodes_s)
        if len(chunks) == 1 and self._exceeds(chunks[0][0]):
            self._observe_least(chunks[0], chunk_s, compute_s)
            return
        self._compares = False
        self._correct(chunks, chunk_s / sum(self.token_s(start) * (end - start) for start, end in chunks))

    def _observe_least(self, chunk: Chunk, chunk_s: float, compute_s: float) -> None:
        """A chunk in a step that exceeds the ratio with any. chunk_s: what it took by the estimate of the decodes."""
        start, end = chunk
        least = self.least(start)
        if (counted := least.counted(end - start)) is not None:
            self._correct([chunk], chunk_s / (counted * self.token_s(start)))
        # By the last measure itself: when the speed changes the estimate follows slowly, and what it lacks would look
        # like a long pass.
        least_s = max(compute_s - self._measured_s, LEAST_SHARE * self._measured_s)
        least.observe(end - start, least_s, self._measures)
        self._compares = least.is_compared

    def _correct(self, chunks: Sequence[Chunk], seen: float) -> None:
        """These took `seen` times as long as expected."""
        correction = _correction(seen, DEARER if seen > 1 else CHEAPER)
        costs = [self.token_s(start) * correction for start, _ in chunks]
        for (start, _), cost in zip(chunks, costs, strict=True):
            self._token_s[_place(start)] = cost

    def _adapt_aim(self, is_over: bool) -> None:
        moved = self._aim - AIM_STEP * (1 - OVER) if is_over else self._aim + AIM_STEP * OVER
        self._aim = min(HIGHEST_AIM, max(LOWEST_AIM, moved))


def _place(start: int) -> int:
    """Of a context among the powers of two."""
    return (start // SHORT_TOKENS).bit_length()


def _size(tokens: int) -> int:
    """Of a chunk that may have so many."""
    grain = max(LEAST_GRAIN, (1 << tokens.bit_length()) // (2 * SIZES))
    return tokens // grain * grain


def _correction(seen: float, weight: float) -> float:
    """What to multiply an estimate by when it was `seen` times itself."""
    return 1 + weight * (min(MOST_CORRECTION, max(1 / MOST_CORRECTION, seen)) - 1)
