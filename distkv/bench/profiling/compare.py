"""Predictions beside what comes, over a grid of (batch, context, offloaded rBlocks), as in 001, Fig. 7."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distkv.bench.profiling.plan import Sizes
from distkv.bench.profiling.turns import Case, Turns
from distkv.control.performance.model import Load, PerformanceModel
from distkv.control.performance.pair import pair_rates
from distkv.wire.messages.profile import Profile
from distkv.wire.profile_file import Predicted

NEAR = 0.1
"""A prediction is good that is off by no more than this share of what came."""


def grid(sizes: Sizes, block_tokens: int) -> tuple[Case, ...]:
    """What is compared: a debtor and, in every other case, a creditor that decodes too."""
    return tuple(
        Case((first, *[sizes.others_tokens] * (batch - 1)), round(share * (first // block_tokens)), is_busy)
        for first in sizes.first_tokens
        for batch in sizes.grid_batches
        for share in sizes.shares
        for is_busy in (False, True)
    )


def compare(profile: Profile, sizes: Sizes, turns: Turns) -> tuple[Predicted, ...]:
    """The cases of the grid that there was time for."""
    model, own = PerformanceModel(profile), sizes.creditor_batch
    points = []
    for case in grid(sizes, profile.block_tokens):
        if case not in turns:
            continue
        seen, batch = turns.seen(case), len(case.contexts)
        debt = Load(
            batch=batch,
            context_tokens=sum(case.contexts) + batch,
            remote_tokens=case.remote_blocks * profile.block_tokens,
        )
        lent = Load(batch=own if case.is_busy else 0, context_tokens=own * (sizes.others_tokens + 1))
        rates = pair_rates((model, debt), (model, lent))
        points.append(
            Predicted(
                batch=batch,
                context_tokens=debt.context_tokens,
                remote_blocks=case.remote_blocks,
                creditor_batch=lent.batch,
                debtor=(rates.debtor, batch / seen.step_s),
                creditor=(rates.creditor, own / seen.creditor_s) if case.is_busy else None,
            )
        )
    return tuple(points)


def errors(points: Sequence[Predicted]) -> Iterator[float]:
    """Of each prediction, debtor's or creditor's: the share of what came that it is off by."""
    for point in points:
        for pair in (point.debtor, point.creditor):
            if pair is not None:
                predicted, measured = pair
                yield abs(predicted - measured) / measured


def share_within(points: Sequence[Predicted]) -> float | None:
    """Share of the predictions within 10 %; None if there are none."""
    found = list(errors(points))
    return sum(error <= NEAR for error in found) / len(found) if found else None
