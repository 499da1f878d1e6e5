"""The memory of a simulated cluster over time: of each instance what its own requests hold, what others have borrowed,
and who, with the requests that wait there and what failed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distkv.bench.simulation.plot import owners_of
from distkv.sim.spec import GMANAGER, Fault, Slow
from distkv.sim.timed.memory import MemorySample

MOST_POOLS = 32
"""Shown, of a larger cluster those that have lent most."""
TWO_COLUMNS = 8
WAITING = "waiting requests"
COLOURS = tuple(f"C{index}" for index in range(10))


def draw_timeline(samples: Sequence[MemorySample], faults: Sequence[Fault], title: str, path: Path) -> None:
    """Into a PNG file. samples: at least one."""
    figures: Any = importlib.import_module("matplotlib.figure")
    shown = shown_pools(samples)
    columns = 1 if len(shown) <= TWO_COLUMNS else 2
    rows = -(-len(shown) // columns)
    figure = figures.Figure(figsize=(14, 1.5 + 1.5 * rows), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, pool in zip(grid.T.flat, shown, strict=False):
        handles |= _pool(axes, samples, faults, pool)
    for axes in list(grid.T.flat)[len(shown) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("s")
    order = sorted(handles, key=lambda name: int(name[1:]) if name != WAITING else len(samples[0].own))
    figure.legend([handles[name] for name in order], order, loc="outside right upper", title="rBlocks of")
    figure.savefig(path, dpi=100)


def shown_pools(samples: Sequence[MemorySample]) -> list[int]:
    """In order, MOST_POOLS at most: those that have lent most, of these the fullest."""
    lent = [sum(one.lent[pool] for one in samples) for pool in range(len(samples[0].own))]
    used = [sum(one.own[pool] for one in samples) for pool in range(len(lent))]
    return sorted(sorted(range(len(lent)), key=lambda pool: (-lent[pool], -used[pool]))[:MOST_POOLS])


def _pool(axes: Any, samples: Sequence[MemorySample], faults: Sequence[Fault], pool: int) -> dict[str, Any]:
    """What is to be named in the legend."""
    name, at_s = f"i{pool}", [one.at_s for one in samples]
    owners = owners_of(samples, pool)
    colours = [COLOURS[int(owner[1:]) % len(COLOURS)] for owner in owners]
    stacks = axes.stackplot(at_s, *owners.values(), colors=colours, step="post")
    size = [one.own[pool] + one.lent[pool] + one.free[pool] for one in samples]
    axes.plot(at_s, size, color="black", linewidth=0.8, drawstyle="steps-post")
    axes.set_ylim(0, 1.05 * max(1, *size))
    axes.set_ylabel(name, rotation=0, ha="right")
    handles = dict(zip(owners, stacks, strict=True))
    waiting = [one.waiting[pool] for one in samples]
    if any(waiting):
        beside = axes.twinx()
        (handles[WAITING],) = beside.plot(at_s, waiting, color="red", linewidth=0.8)
        beside.set_ylim(0, 1.05 * max(waiting))
    for fault in faults:
        if fault.instance in (name, GMANAGER):
            _mark(axes, fault)
    return handles


def _mark(axes: Any, fault: Fault) -> None:
    if isinstance(fault, Slow):
        axes.axvspan(fault.at_s, fault.until_s, color="orange", alpha=0.2)
    else:
        axes.axvline(fault.at_s, color="grey" if fault.instance == GMANAGER else "red", linestyle="--", linewidth=0.8)
