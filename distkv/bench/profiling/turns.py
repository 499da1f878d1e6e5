"""Decode steps of a debtor and its creditor, measured by turns.

A machine that others use too, or that gets warm, takes another time for the same step a minute later. So each case is
visited for a moment in every round, in an order that is drawn anew, and the mean of those of its visits that lie
in the middle counts: what is fitted and what it is compared with have met the same machine.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from random import Random

import msgspec

from distkv.bench.harness.command import Say
from distkv.bench.profiling.engine import Engine, Timing, decodes, means_of
from distkv.bench.profiling.plan import Budget, Sizes


class Case(msgspec.Struct, frozen=True):
    """A decode step of the debtor: tokens behind each of its sequences, the first of which has its oldest rBlocks on
    the creditor; without sequences the creditor is alone. is_busy: while the creditor decodes its own sequences."""

    contexts: tuple[int, ...] = ()
    remote_blocks: int = 0
    is_busy: bool = False


ALONE = Case(is_busy=True)
"""The creditor's own step, nothing beside it."""


class Seen(msgspec.Struct, frozen=True):
    """Of a case, by its visits: the debtor's step, the wait for partials that is part of it, and what is not; and the
    creditor's own step meanwhile. compute_s, creditor_compute_s: what workers computed for them. 0 for who does
    nothing."""

    step_s: float
    wait_s: float
    own_s: float
    creditor_s: float
    compute_s: float
    creditor_compute_s: float


class Turns:
    """Visits cases, and remembers what was seen. Of the creditor's pool the first lent_blocks rBlocks are lent."""

    def __init__(
        self, debtor: Engine, creditor: Engine, sizes: Sizes, lent_blocks: int, budget: Budget, say: Say
    ) -> None:
        self._debtor, self._creditor, self._sizes = debtor, creditor, sizes
        self._budget, self._say = budget, say
        contexts = [sizes.others_tokens] * sizes.creditor_batch
        self._own = decodes(contexts, creditor.ready.block_tokens, first_slot=lent_blocks)
        self._visits: dict[Case, list[tuple[Timing | None, Timing | None]]] = {}

    async def take(self, needed: Sequence[Case], others: Sequence[Case]) -> None:
        """Rounds until there were enough, or the budget is spent; whatever is needed is visited at least once."""
        cases = list(dict.fromkeys((*needed, *others)))
        rounds, said, draw = self._sizes.rounds, "", Random(0)
        for index in range(rounds):
            for case in cases:
                if self._budget.is_spent and (index or case not in needed):
                    continue
                text = (
                    f"decode steps, round {index + 1} of at most {rounds}, {self._budget.spent_share:.0%} of the time"
                )
                if text != said:
                    self._say(text)
                    said = text
                self._visits.setdefault(case, []).append(await self._visit(case))
            draw.shuffle(cases)

    def __contains__(self, case: Case) -> bool:
        return case in self._visits

    def seen(self, case: Case) -> Seen:
        """Of a case that was visited."""
        visits = self._visits[case]
        debtor = [timing for timing, _ in visits if timing is not None]
        creditor = [timing for _, timing in visits if timing is not None]
        return Seen(
            step_s=middle([one.step_s for one in debtor]),
            wait_s=middle([one.wait_s for one in debtor]),
            own_s=middle([one.own_s for one in debtor]),
            creditor_s=middle([one.step_s for one in creditor]),
            compute_s=middle([one.compute_s for one in debtor]),
            creditor_compute_s=middle([one.compute_s for one in creditor]),
        )

    async def _visit(self, case: Case) -> tuple[Timing | None, Timing | None]:
        """Of the debtor and the creditor."""
        if not case.contexts:
            return None, means_of(await self._creditor.time(self._own, self._is_enough))
        seqs = decodes(
            case.contexts,
            self._debtor.ready.block_tokens,
            first_slot=0,
            remote_blocks=case.remote_blocks,
            creditor=self._creditor.name,
        )
        if not case.is_busy:
            return means_of(await self._debtor.time(seqs, self._is_enough)), None
        is_over = False
        beside = asyncio.create_task(self._creditor.time(self._own, lambda steps, _: is_over and steps > 0))
        try:
            debtor = await self._debtor.time(seqs, self._is_enough)
        finally:
            is_over = True
            own = await beside
        meanwhile = [one for one in own if one.ended_s <= debtor[-1].ended_s]
        return means_of(debtor), means_of(meanwhile or own)

    def _is_enough(self, steps: int, seconds: float) -> bool:
        return steps > 0 and seconds >= self._sizes.visit_s


def middle(values: Sequence[float]) -> float:
    """Mean of the values without three eighths of them at either end; 0 without any. Of visits, not the least: where
    both compute, one that was held up is luck for the other. As many may be disturbed as with the median of eight, and
    fewer visits are known better by it."""
    ordered = sorted(values)
    outer = 3 * len(ordered) // 8
    return statistics.fmean(ordered[outer : len(ordered) - outer]) if ordered else 0.0
