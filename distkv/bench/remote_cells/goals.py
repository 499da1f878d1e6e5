"""What issue 16 wants of remote attention."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.bench.baselines.checkpoints import Model
from distkv.bench.harness.alternate import Samples, median_interval, paired_ratio
from distkv.bench.harness.report import Goal, judged
from distkv.bench.remote_cells.layers import BEYOND, BEYOND_P99
from distkv.bench.remote_cells.memory import BY_ONE, BY_TWO, READ

ONE, TWO, THREE = "one instance", "two instances", "three instances"
ALONE, SERVING, SHARE = "alone", "while it serves", "what the bytes explain"
BESIDE, SHARE_BESIDE = "beside a debtor that asks nobody", "what the bytes explain beside it"
MOST_TIMES = {2048: 1.10, 32768: 0.80}
LONG = 32768
LIMIT = "a step that only reads, as fast as one core and two at once read here"
MOST_BEYOND_US = 60.0
MOST_ROUND_TRIP_US = {"shm": 45.0, "tcp": 60.0}
MOST_IDLE_PERCENT = 1.0
MOST_LOSS_BEYOND = 0.10


def token_case(context: int) -> str:
    """Of time per token."""
    return f"token behind {context:,}, ms"


def layer_case(context: int, load: str) -> str:
    """Of the parts of a layer."""
    return f"layer behind {context:,}, {load} creditor, µs"


ROUND_TRIP = "16 KB of queries and their partials, µs"
IDLE = "linked and idle, % of one core"
OWN_STEPS = "busy creditor, steps/s"


def goals_of(samples: Samples, contexts: Sequence[int], shape: Model) -> tuple[Goal, ...]:
    """Those that were measured."""
    return (*_times(samples, contexts, shape), *_layers(samples, contexts), *_loss(samples), *_links(samples))


def _times(samples: Samples, contexts: Sequence[int], shape: Model) -> list[Goal]:
    found = []
    for context in contexts:
        variants = samples[token_case(context)]
        if context in MOST_TIMES:
            name = f"time per token behind {context:,}, half of it at a creditor, beside one instance"
            found.append(judged(name, paired_ratio(variants[TWO], variants[ONE]), most=MOST_TIMES[context]))
            if READ in samples:
                limit = _limit(samples, shape, context)
                found.append(Goal("what memory allows of it", "stated", f"{limit:.2f}", None, LIMIT))
        if context == LONG:
            name = f"tokens/s of three instances behind {context:,} beside one"
            found.append(judged(name, paired_ratio(variants[ONE], variants[THREE]), least=1.0))
    return found


def _limit(samples: Samples, shape: Model, context: int) -> float:
    """Time of a step that only reads, half of its KV at another core meanwhile, beside one that reads all of it."""
    reads = samples[READ]
    half_takes = 1 / paired_ratio(reads[BY_TWO], reads[BY_ONE]).value  # of what all of it takes
    everything, weights = shape.step_bytes(context, 1), shape.step_bytes(0, 1)
    return (weights + (everything - weights) * half_takes) / everything


def _layers(samples: Samples, contexts: Sequence[int]) -> list[Goal]:
    found = []
    for context in contexts:
        beyond = median_interval(samples[layer_case(context, "idle")][BEYOND])
        name = f"µs that a layer behind {context:,} waits beyond the slower partial, idle creditor"
        found.append(judged(name, beyond, most=MOST_BEYOND_US))
        p99 = median_interval(samples[layer_case(context, "busy")][BEYOND_P99])
        name = f"the same behind {context:,}, busy creditor, p99"
        found.append(Goal(name, "stated", str(p99), None, "the issue wants it stated, not below a number"))
    return found


def _loss(samples: Samples) -> list[Goal]:
    """Of a busy creditor's own steps, beside what the bytes that it reads for the debtor explain: of its steps alone,
    and of those beside a debtor that computes as much and asks nobody, as one on the same host would in any case."""
    steps = samples[OWN_STEPS]
    found = []
    for of, share in ((ALONE, SHARE), (BESIDE, SHARE_BESIDE)):
        least = paired_ratio(steps[share], steps[of]).value - MOST_LOSS_BEYOND
        name = f"own steps that a busy creditor keeps, of those {of}"
        found.append(judged(name, paired_ratio(steps[SERVING], steps[of]), least=round(least, 3)))
    return found


def _links(samples: Samples) -> list[Goal]:
    found = [
        judged(f"µs of {ROUND_TRIP.rpartition(',')[0]}, {name}", median_interval(samples[ROUND_TRIP][name]), most=most)
        for name, most in MOST_ROUND_TRIP_US.items()
    ]
    idle = max(samples[IDLE]["creditor"])
    name = "% of a core that a linked creditor takes while nobody asks, most of all rounds"
    found.append(Goal(name, f"at most {MOST_IDLE_PERCENT:g}", f"{idle:.2f}", idle <= MOST_IDLE_PERCENT))
    return found
