"""A trace at several rates, by several policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from distkv.bench.simulation.figures import Figures, at_scale, figures
from distkv.sim.alone import alone
from distkv.sim.run import SimResult, simulate
from distkv.sim.spec import SimPolicyName, SimSpec
from distkv.sim.trace import TraceRequest


class Played(msgspec.Struct, frozen=True):
    """What came of a trace at one rate by one policy."""

    figures: Figures
    result: SimResult


Progress = Callable[[str, float, int], None]
"""What is played, simulated seconds of that, and requests that have ended since the beginning."""


def sweep(
    trace: Sequence[TraceRequest],
    spec: SimSpec,
    policies: Sequence[SimPolicyName],
    scales: Sequence[float],
    progress: Progress,
) -> Iterator[Played]:
    """Each policy at each rate, as soon as it is played. What goodput counts by, requests alone, is simulated first."""
    specs = [msgspec.structs.replace(spec, policy=policy) for policy in policies]
    unloaded = alone(trace, spec)
    for index, (one, scale) in enumerate(itertools.product(specs, scales)):
        tell = partial(_tell, progress, f"{one.policy}, rate x {scale:g}", index * len(trace))
        result = simulate(at_scale(trace, scale), one, tell)
        yield Played(figures(result, one, scale, unloaded), result)


def _tell(progress: Progress, name: str, before: int, now_s: float, ended: int, of: int) -> None:
    progress(name, now_s, before + ended)
