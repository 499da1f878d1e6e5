"""The decode steps that are measured for a profile, and what is fitted through them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import msgspec

from distkv.bench.profiling.chunks import spans
from distkv.bench.profiling.fitting import (
    LEAST_S,
    Remote,
    curve_of,
    least_squares,
    line_through,
    rate_of,
    remote_of,
    steps_of,
)
from distkv.bench.profiling.plan import Sizes, widest_first
from distkv.bench.profiling.turns import ALONE, Case, Turns
from distkv.control.performance.model import traffic
from distkv.wire.messages.profile import Point


class Decoded(msgspec.Struct, frozen=True):
    """What a profile says of decode steps. idle, busy: until partials come from a creditor that computes nothing else,
    and from one that does; crowded_times, crowded_step_s: while both compute, and serving_share, serving_step_s: of
    what that serves, see Profile."""

    step: tuple[Point, ...]
    attention: tuple[Point, ...]
    remote_step: tuple[Point, ...]
    idle: Remote
    busy: Remote
    crowded_times: float
    crowded_step_s: float
    serving_share: float
    serving_step_s: float


class Decoding:
    """The cases, by size, widest first; of each kind the first two are needed."""

    def __init__(self, sizes: Sizes, block_tokens: int) -> None:
        self._block_tokens, self._one = block_tokens, 2 * block_tokens
        batches = sizes.grid_batches
        batch = batches[-1] if len(batches) < 3 else batches[1]
        # Of several sequences, so that the context is as wide as it is in use.
        self._base = batch, Case((block_tokens,) * batch)
        self._attention = {tokens: Case((tokens // batch,) * batch) for tokens in widest_first(sizes.context_tokens)}
        self._step = {count: Case((block_tokens,) * count) for count in widest_first(sizes.batches)}
        self._remote_step = {count: Case((self._one,) * count, 1) for count in widest_first(sizes.remote_batches)}
        self._spans = spans(sizes, block_tokens)
        self._alone = [
            Case((sizes.others_tokens,) * count)
            for count in dict.fromkeys((sizes.grid_batches[0], sizes.creditor_batch, sizes.grid_batches[-1]))
        ]
        self._crowded = [Case(case.contexts, is_busy=True) for case in self._alone]

    @property
    def needed(self) -> tuple[Case, ...]:
        """Those without which there is no profile."""
        first = self._base[1], ALONE, self._alone[0], self._crowded[0]
        return *first, *(case for kind in self._kinds() for case in kind[:2])

    @property
    def others(self) -> tuple[Case, ...]:
        """Those that make it better."""
        return *self._alone[1:], *self._crowded[1:], *(case for kind in self._kinds() for case in kind[2:])

    def fit(self, turns: Turns) -> Decoded:
        """By what was visited."""
        attention = self._fit_attention(turns)
        key_s = rate_of(attention)
        remote_step = steps_of(
            (count, turns.seen(case).own_s - key_s * (self._one * count - self._block_tokens))
            for count, case in self._remote_step.items()
            if case in turns
        )
        idle = remote_of(list(self._waits(turns, is_busy=False)), key_s * (self._block_tokens + 1))
        step = steps_of(
            (count, turns.seen(case).step_s - key_s * self._block_tokens * count)
            for count, case in self._step.items()
            if case in turns
        )
        weights_s = step[0].seconds
        crowded, crowded_step_s = self._fit_crowded(turns, weights_s)
        hidden_s = crowded * key_s * (self._block_tokens + 1)
        busy = Remote(
            *line_through([(tokens, wait_s + hidden_s) for tokens, wait_s in self._waits(turns, is_busy=True)])
        )
        step_s, token_s = least_squares(list(self._lost(turns, weights_s, crowded, crowded_step_s)))
        return Decoded(
            step=step,
            attention=attention,
            remote_step=remote_step,
            idle=idle,
            busy=busy,
            crowded_times=crowded,
            crowded_step_s=crowded_step_s,
            serving_share=min(16.0, token_s / busy.token_s),
            serving_step_s=step_s,
        )

    # --- parts

    def _kinds(self) -> Iterator[tuple[Case, ...]]:
        yield tuple(self._attention.values())
        yield tuple(self._step.values())
        yield tuple(self._remote_step.values())
        for is_busy in (False, True):
            yield tuple(self._span(blocks, is_busy) for blocks in self._spans)

    def _span(self, blocks: int, is_busy: bool) -> Case:
        return Case(((blocks + 1) * self._block_tokens,), blocks, is_busy)

    def _fit_attention(self, turns: Turns) -> tuple[Point, ...]:
        batch, base = self._base
        least, base_s = batch * self._block_tokens, turns.seen(base).step_s
        return curve_of(
            (tokens, tokens * max(LEAST_S, turns.seen(case).step_s - base_s) / (tokens - least))
            for tokens, case in self._attention.items()
            if case in turns
        )

    def _waits(self, turns: Turns, *, is_busy: bool) -> Iterator[tuple[int, float]]:
        """By tokens of a span."""
        for blocks in self._spans:
            case = self._span(blocks, is_busy)
            if case in turns:
                yield blocks * self._block_tokens, turns.seen(case).wait_s

    def _fit_crowded(self, turns: Turns, weights_s: float) -> tuple[float, float]:
        """While both decode: how many times as long workers would compute a step that only reads the weights, and how
        much longer it is to the next one."""
        own = turns.seen(ALONE)
        own_rest_s = own.creditor_s - own.creditor_compute_s
        longer, rests = [], []
        for case, crowded in zip(self._alone, self._crowded, strict=True):
            if case in turns and crowded in turns:
                alone, both = turns.seen(case), turns.seen(crowded)
                shared = traffic(weights_s, alone.step_s) * traffic(weights_s, own.creditor_s)
                longer += [
                    (shared, both.compute_s / alone.compute_s - 1.0),
                    (shared, both.creditor_compute_s / own.creditor_compute_s - 1.0),
                ]
                rests += [
                    both.step_s - both.compute_s - (alone.step_s - alone.compute_s),
                    both.creditor_s - both.creditor_compute_s - own_rest_s,
                ]
        times = sum(shared * more for shared, more in longer) / sum(shared * shared for shared, _ in longer)
        return 1.0 + max(0.0, times), max(0.0, statistics.fmean(rests))

    def _lost(self, turns: Turns, weights_s: float, times: float, rest_s: float) -> Iterator[tuple[int, float]]:
        """By how much the creditor's own steps take longer for each step of the debtor, by tokens of a span: beyond
        what a debtor that asks nobody, and is as long at its step, would cost them."""
        own_s = turns.seen(ALONE).creditor_s
        most = (times - 1.0) * traffic(weights_s, own_s)
        for blocks in self._spans:
            case, idle = self._span(blocks, True), self._span(blocks, False)
            if case in turns and idle in turns:
                seen = turns.seen(case)
                without_s = (1.0 + most * traffic(weights_s, turns.seen(idle).step_s)) * own_s + rest_s
                yield blocks * self._block_tokens, (1.0 - without_s / seen.creditor_s) * seen.step_s
