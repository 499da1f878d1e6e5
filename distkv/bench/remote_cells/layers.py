"""Where the time of a layer goes, by what both sides noted of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from distkv.bench.harness.quantile import p99
from distkv.engine.attention.layer_times import LayerTimes, ServedTimes

BEYOND = "wait beyond the slower partial"
BEYOND_P99 = f"{BEYOND}, p99"


def parts_us(debtor: Sequence[LayerTimes], creditor: Sequence[ServedTimes]) -> Mapping[str, float]:
    """Medians over the layers of some steps, µs. Both sides noted the same layers.

    The slower partial is the debtor's own or the creditor's, whichever was computed later.
    """
    if [one.layer for one in debtor] != [one.layer for one in creditor]:
        raise RuntimeError(f"the debtor computed {len(debtor)} layers, the creditor served {len(creditor)}")
    pairs = list(zip(debtor, creditor, strict=True))
    found = {
        "send": [own.sent_s - own.begun_s for own in debtor],
        "own attention": [own.attended_s - own.sent_s for own in debtor],
        "until the creditor has the queries": [other.received_s - own.sent_s for own, other in pairs],
        "the creditor's attention": [other.attended_s - other.received_s for other in creditor],
        BEYOND: [own.collected_s - max(own.attended_s, other.attended_s) for own, other in pairs],
        "merge": [own.merged_s - own.collected_s for own in debtor],
    }
    medians = {part: 1e6 * max(0.0, statistics.median(values)) for part, values in found.items()}
    return medians | {BEYOND_P99: 1e6 * p99(found[BEYOND])}
