"""What issue 16 wants of distributed attention, by 001 Fig. 11."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.bench.harness.alternate import Samples, paired_ratio
from distkv.bench.harness.report import Goal, judged
from distkv.bench.split_attention.ways import DIST, HEADS, HOST, RING, SHAPED, Link

LONG = 32 << 10
MOST_TIMES_HEADS = 1.02
LEAST_TIMES_RING = 7.7
LINK_NAMES: dict[Link, str] = {HOST: "within a host", SHAPED: "links of 125 MB/s"}


def time_case(link: Link, context: int, rows: int = 1) -> str:
    """Of attention in one layer: of a decode step, or of a chunk with so many query rows."""
    return f"{LINK_NAMES[link]}: time of a layer{_chunk(rows)}, {context / 1024:g}K"


def sent_case(link: Link, context: int, rows: int = 1) -> str:
    """Of what travels in one layer: queries, outputs, keys and values."""
    return f"{LINK_NAMES[link]}: sent in a layer{_chunk(rows)}, {context / 1024:g}K"


def _chunk(rows: int) -> str:
    return "" if rows == 1 else f" of a chunk of {rows}"


def unit_of(case: str) -> str:
    """The unit of a case."""
    return "ms" if "time of" in case else "MB"


def goals_of(samples: Samples, contexts: Sequence[int], no_network: str) -> tuple[Goal, ...]:
    """no_network: why nothing was measured over shaped links, if so."""
    goals = []
    for link in LINK_NAMES:
        for context in contexts:
            if context >= LONG:
                name = f"{LINK_NAMES[link]}, {context >> 10}K: {DIST}'s time beside that of {HEADS}"
                found = samples.get(time_case(link, context))
                ratio = None if found is None else paired_ratio(found[DIST], found[HEADS])
                goals.append(_known(judged(name, ratio, most=MOST_TIMES_HEADS), no_network))
    rings = [_ring(samples.get(time_case(SHAPED, context), {}), context) for context in contexts]
    return (*goals, *(_known(goal, no_network) for goal in rings))


def _known(goal: Goal, no_network: str) -> Goal:
    """Why a goal was not measured."""
    if goal.measured != "not measured":
        return goal
    return Goal(goal.goal, goal.target, goal.measured, None, f"no shaped links: {no_network}")


def _ring(variants: dict[str, list[float]], context: int) -> Goal:
    """It has fewer rounds than the others, so its fastest one is compared with the slowest of these."""
    name = f"{LINK_NAMES[SHAPED]}, {context / 1024:g}K: {RING}'s time beside that of {DIST}"
    ours, theirs = variants.get(DIST), variants.get(RING)
    if not ours or not theirs:
        return judged(name, None, least=LEAST_TIMES_RING)
    least, most = min(theirs) / max(ours), max(theirs) / min(ours)
    is_met = True if least >= LEAST_TIMES_RING else False if most < LEAST_TIMES_RING else None
    why = "the fastest round beside the slowest one, and the slowest beside the fastest"
    return Goal(name, f"at least {LEAST_TIMES_RING:g}", f"{least:.1f}..{most:.1f}", is_met, why)
