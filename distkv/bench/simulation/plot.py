"""Simulations as pictures: figures over the rate, and memory over time by instance and owner."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distkv.bench.simulation.figures import Figures
from distkv.bench.simulation.sweep import Played
from distkv.sim.timed.memory import MemorySample

MOST_POOLS = 12
"""Shown of a cluster."""
PANELS: tuple[tuple[str, Callable[[Figures], float | None]], ...] = (
    ("output tokens/s (more is better)", lambda one: one.tokens_per_s),
    ("goodput, requests/s (more is better)", lambda one: one.goodput_rps),
    ("time to first token, p99, s (less is better)", lambda one: one.ttft_p99_s),
    ("time per token, p99, s (less is better)", lambda one: one.tpot_p99_s),
    ("imbalance of memory, P95 (less is better)", lambda one: one.imbalance_p95),
    ("remote share of attention", lambda one: one.remote_share),
)


def draw(played: Sequence[Played], labels: Sequence[str], title: str, path: Path) -> None:
    """The figures of all, a line for those with the same label, and the memory of the last."""
    figures: Any = importlib.import_module("matplotlib.figure")
    samples = played[-1].result.samples
    pools = min(MOST_POOLS, len(samples[0].own)) if samples else 0
    rows = 2 + math.ceil(pools / 3)
    figure = figures.Figure(figsize=(15, 3 * rows), layout="constrained")
    figure.suptitle(title)
    for index, (name, value_of) in enumerate(PANELS):
        _lines(figure.add_subplot(rows, 3, index + 1), name, played, labels, value_of)
    last = played[-1].figures
    for pool in range(pools):
        axes = figure.add_subplot(rows, 3, 7 + pool)
        _memory(axes, samples, pool)
        axes.set_title(
            f"rBlocks of i{pool} by whose they are ({last.policy}, rate x {last.rate_scale:g})", fontsize="small"
        )
    figure.savefig(path, dpi=100)


def owners_of(samples: Sequence[MemorySample], pool: int) -> dict[str, list[int]]:
    """rBlocks of a pool over time, by the instance whose requests have them; its own first."""
    owners = {f"i{pool}": list[int](sample.own[pool] for sample in samples)}
    for index, sample in enumerate(samples):
        for creditor, debtor, blocks in sample.loans:
            if creditor == pool:
                owners.setdefault(f"i{debtor}", [0] * len(samples))[index] = blocks
    return owners


def _lines(
    axes: Any, name: str, played: Sequence[Played], labels: Sequence[str], value_of: Callable[[Figures], float | None]
) -> None:
    by_label: dict[str, list[tuple[float, float]]] = {}
    for label, one in zip(labels, played, strict=True):
        if (value := value_of(one.figures)) is not None:
            by_label.setdefault(label, []).append((one.figures.rate_scale, value))
    for label, points in by_label.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
    axes.set_title(name, fontsize="small")
    axes.set_xlabel("rate, in times the trace's")
    axes.set_ylim(bottom=0)
    if by_label:
        axes.legend(fontsize="small")


def _memory(axes: Any, samples: Sequence[MemorySample], pool: int) -> None:
    owners = owners_of(samples, pool)
    axes.stackplot([sample.at_s for sample in samples], *owners.values(), labels=list(owners))
    axes.set_ylim(0, max(1, max(sample.own[pool] + sample.lent[pool] + sample.free[pool] for sample in samples)))
    axes.set_xlabel("s")
    if len(owners) <= MOST_POOLS:
        axes.legend(fontsize="x-small", loc="upper left")
