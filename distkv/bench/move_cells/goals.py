"""What issue 16 wants of moves (001 Fig. 12a)."""

from __future__ import annotations

from distkv.bench.harness.alternate import Samples, median_interval, paired_ratio
from distkv.bench.harness.report import Goal, judged

ROLES = "debtor", "creditor"
NONE = "no moves"
LEAST = {16: 0.99, 32: 0.97}
"""Of the decode throughput without moves, by tokens moved per decode step of the debtor."""
ALONE = "16 tokens, an rBlock at a time"
BURST = "16 tokens, in bursts"


def rate_case(role: str) -> str:
    """Of decode throughput."""
    return f"{role}, steps/s"


def beside_case(role: str) -> str:
    """Of processor time of other threads than the one that computes steps."""
    return f"{role} beside its steps, % of a core"


def messages_case(role: str) -> str:
    """Of processor time of what stands for its rManager, on the same core."""
    return f"messages of the {role}, % of a core"


def variant_of(tokens: int) -> str:
    """So many moved for each step."""
    return f"{tokens} tokens" if tokens else NONE


def goals_of(samples: Samples, moved: int, refused: int, wrong: int) -> tuple[Goal, ...]:
    """moved: rBlocks. refused: by checksums on arrival. wrong: slots that did not hold what had been moved there."""
    found = []
    for tokens, least in LEAST.items():
        for role in ROLES:
            rates = samples[rate_case(role)]
            name = f"decode throughput of the {role} at {tokens} tokens per step, beside none"
            found.append(judged(name, paired_ratio(rates[variant_of(tokens)], rates[NONE]), least=least))
            beside = samples[beside_case(role)]
            more = [a - b for a, b in zip(beside[variant_of(tokens)], beside[NONE], strict=True)]
            name = f"% of its core that moving takes the {role} at {tokens} tokens per step"
            found.append(judged(name, median_interval(more), most=round(100 * (1 - least), 3)))
    name = "rBlocks refused on arrival, and slots with wrong bytes"
    found.append(Goal(name, "0 of some", f"{refused + wrong} of {moved}", refused + wrong == 0 < moved))
    return tuple(found)
