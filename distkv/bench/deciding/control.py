"""`distkv bench control`: what the decisions of an rManager cost per event, with 10 to 10,000 requests waiting.

The state machine alone, as an instance runs it: no sockets, no tensors. Its worker answers at once.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable

from distkv.bench.harness.alternate import alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.quantile import p99
from distkv.bench.harness.report import Goal
from distkv.bench.workloads.deciding.control_load import BLOCK_TOKENS, ControlLoad

SIZES, QUICK_SIZES = (10, 100, 1_000, 10_000), (10, 100)
BATCH = 64
EVENTS = 200
"""Of a kind in a sample."""
STEPS = 80
SETTLING = 3
"""Steps that carry out what the requests cancelled before them left."""
MOST_ROUNDS = BLOCK_TOKENS // (STEPS + SETTLING) - 2
"""A batch that needs no second rBlock each leaves the memory as it is. That many rounds are 300 steps, for a p99."""
EVENT_GOAL_US, STEP_GOAL_US = 100.0, 1000.0
GROWTH_GOAL = 1.5
STEP, STEP_P99 = f"a step of {BATCH}", f"a step of {BATCH}, p99"
HELP = """What the decisions of an rManager cost per event, in µs of its thread: with 10 to 10,000 requests waiting, and
with as many peers. A step: its tokens are committed, the next step is planned.

\b
Examples:
  distkv bench control --json control.json --plot control.png
  distkv bench control --quick
"""


class Rates:
    """Gives events to one rManager. p99 is of all steps so far."""

    def __init__(self, waiting: int, members: int) -> None:
        self._load = ControlLoad(waiting, members=members, batch=BATCH, fits=False)
        self._steps: list[float] = []

    def measure(self) -> dict[str, float]:
        """µs per event: the median of each kind."""
        load = self._load
        names: list[str] = []
        for _ in range(SETTLING):
            load.answer_step()
        steps = [self._us(load.answer_step) for _ in range(STEPS)]
        self._steps += steps
        found = {
            STEP: statistics.median(steps),
            "a request that will wait": self._median(lambda: names.append(load.submit_behind())),
            "a client cancels it": self._median(lambda: load.cancel(names.pop())),
            "a client is there": self._median(load.keep_alive),
            "a heartbeat": self._median(load.heartbeat),
        }
        return found | {STEP_P99: p99(self._steps)}

    def _median(self, act: Callable[[], object]) -> float:
        return statistics.median(self._us(act) for _ in range(EVENTS))

    def _us(self, act: Callable[[], object]) -> float:
        act()
        return self._load.took_us


def measure(say: Say, *, quick: bool) -> Measured:
    """Run it."""
    sizes, rounds = (QUICK_SIZES, 2) if quick else (SIZES, MOST_ROUNDS)
    variants: dict[str, Callable[[], dict[str, float]]] = {}
    for waiting in sizes:
        say(f"{waiting:,} waiting")
        variants[f"{waiting:,} waiting"] = Rates(waiting, 0).measure
    variants[f"and {sizes[-1]:,} peers"] = Rates(sizes[-1], sizes[-1]).measure
    # As in an instance: what is here by now stays, and is not looked at again.
    gc.collect()
    gc.freeze()
    samples = alternate(variants, rounds, report=say)
    gc.unfreeze()
    facts = {"load": f"a batch of {BATCH} that decodes; requests of two to four rBlocks of {BLOCK_TOKENS} tokens wait"}
    return Measured(samples, tuple(goal for case, found in samples.items() for goal in _goals(case, found)), facts)


def _goals(case: str, found: dict[str, list[float]]) -> tuple[Goal, ...]:
    first, *_, last = found
    if case == STEP_P99:
        worst = found[last][-1]
        return (Goal(f"{case}, {last}", f"at most {STEP_GOAL_US:g} µs", f"{worst:.0f}", worst <= STEP_GOAL_US),)
    growth = paired_ratio(found[last], found[first])
    grows = Goal(f"{case}: {last} beside {first}", f"at most {GROWTH_GOAL:g}", str(growth), growth.value <= GROWTH_GOAL)
    if case == STEP:
        return (grows,)
    median = statistics.median(found[last])
    return Goal(f"{case}, {last}", f"at most {EVENT_GOAL_US:g} µs", f"{median:.0f}", median <= EVENT_GOAL_US), grows


main = benchmark("control", measure, HELP, unit_of=lambda case: "µs")
