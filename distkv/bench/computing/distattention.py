"""`distkv bench distattention`: attention of a decode step, and of a chunk, over several processes (001 Fig. 11).

DistAttention, tensor parallelism by heads and RingAttention, by turns over the same keys, within a host and over links
of 125 MB/s. Each is checked against attention in float64 before it is measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal

import click
from torch import Tensor

from distkv.bench.harness.alternate import Measure, Turns
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.plots.plot import write_lines
from distkv.bench.harness.report import show_lines
from distkv.bench.split_attention.goals import goals_of, sent_case, time_case, unit_of
from distkv.bench.split_attention.group import Group, Step, started
from distkv.bench.split_attention.network import RATE_MB_S, Place, missing, shaped_network
from distkv.bench.split_attention.split import Split, exact_attention
from distkv.bench.split_attention.ways import DIST, HEADS, HOST, OUT_DTYPES, RING, SHAPED, WAYS, Link, Name
from distkv.engine.device.host_memory import host_memory

Load = Literal["all", "decode", "chunk"]
LINKS: tuple[Link, ...] = (HOST, SHAPED)
CONTEXTS = tuple(2**exponent << 10 for exponent in range(2, 9))
CHUNK_CONTEXTS = CONTEXTS[:3]
CHUNK_ROWS = 256
QUICK_CONTEXTS = (512, 1024)
QUICK_CHUNK_CONTEXTS, QUICK_CHUNK_ROWS = (512,), 5
HEADS_13B, DIM_13B, LAYERS_13B = 40, 128, 40
STEP_BYTES = 5 << 28
"""A step has as many layers as have so many bytes of keys and values, so that no cache has what it reads."""
TOLERANCE = 0.01
"""Of results, beside the largest number of the exact ones: keys, queries and some outputs are bfloat16."""
RING_S = 10.0
RING_ROUNDS = 3
"""RingAttention plays as many rounds as take RING_S, RING_ROUNDS at most; where that is less than two, the step that
its result was taken from is all that is measured of it."""
MEMORY_SHARE = 0.75
"""Of the memory that is available, what the pools of all processes may take."""
HELP = """Attention of one decode step of LLaMA2-13B's shapes (40 heads of 128, bfloat16) over 4K to 256K tokens, and of
a chunk of 256 tokens behind 4K to 16K, split over processes in three ways: DistAttention, tensor parallelism by heads,
RingAttention. By turns over the same keys, with the processes on one host, and joined by links of 125 MB/s where this
is root; the time of a layer, and what it sends.

\b
Examples:
  distkv bench distattention --json distattention.json --plot distattention.png
  distkv bench distattention --processes 4
  distkv bench distattention --quick
"""


def measure(say: Say, *, quick: bool, processes: int, load: Load, rounds: int) -> Measured:
    """Run it. Nothing that it started is left on return."""
    splits = [one for one in (_quick_splits if quick else _splits)(processes) if load in ("all", _load(one))]
    available_bytes = host_memory().free_bytes
    fitting = [split for split in splits if _pools_bytes(split) <= MEMORY_SHARE * available_bytes]
    turns, errors, ring_rounds = Turns(), dict.fromkeys(WAYS, 0.0), []
    no_network = missing()
    with ExitStack() as stack:
        places = () if no_network else stack.enter_context(shaped_network(processes))
        for split in fitting:
            bench = _Bench(say, split, turns, rounds, places)
            for way, error in bench.run().items():
                errors[way] = max(errors[way], error)
            ring_rounds += bench.ring_rounds
    facts = {
        "model": f"attention of LLaMA2-13B, {HEADS_13B} heads of {DIM_13B}, bfloat16",
        "placed": f"{processes} processes of one thread each, on {min(processes, len(os.sched_getaffinity(0)))} cores",
        "links": "Unix sockets and mapped pools; " + (no_network or f"{RATE_MB_S} MB/s each way by tc tbf"),
        "left_out": ", ".join(f"{_title(one)}: memory" for one in splits if one not in fitting) or "nothing",
        "rounds of RingAttention": ", ".join(ring_rounds),
        "off_by": ", ".join(f"{way} {error:.2%}" for way, error in errors.items()) + " of the largest exact number",
        "contenders": {
            DIST: "the rBlocks are split; queries in bfloat16 to creditors, partials back in "
            f"{OUT_DTYPES[HOST]} within a host and {OUT_DTYPES[SHAPED]} between",
            HEADS: "the heads are split; no queries travel, and outputs are gathered by all in one hop, in the same "
            "dtypes; the all-reduce that a layer does instead would send at least twice as much",
            RING: "the rBlocks are split, and so are a chunk's queries; the one of a decode step is where the first of "
            "them are; all others come there, also ahead for the next layer, by mapped reads within a host; attended "
            "to piece by piece meanwhile",
        },
    }
    goals = goals_of(turns.samples, [split.context for split in fitting if split.rows == 1], no_network)
    return Measured(turns.samples, goals, facts)


class _Bench:
    """One split. ring_rounds: of RingAttention over each link, in words."""

    def __init__(self, say: Say, split: Split, turns: Turns, rounds: int, places: Sequence[Place]) -> None:
        self._split, self._turns, self._rounds, self._places = split, turns, rounds, places
        self._report = say
        self._title = _title(split)
        self.ring_rounds: list[str] = []

    def run(self) -> dict[Name, float]:
        """Measure all ways; returns how far each is off."""
        self._say("exact attention")
        exact = exact_attention(self._split, 0)
        self._say("drawing keys")
        errors: dict[Name, float] = dict.fromkeys(WAYS, 0.0)
        with started(self._split, self._places) as group:
            for link in LINKS if self._places else LINKS[:1]:
                first: dict[Name, Step] = {}
                for way in WAYS:
                    self._say(f"{way}, {link}, compared")
                    first[way] = group.step(way, link, self._layers(way, link), with_outputs=True)
                    errors[way] = max(errors[way], self._error(way, first[way], exact))
                self._rounds_of(group, link, first)
        return errors

    def _say(self, what: str) -> None:
        self._report(f"{self._title}, {what}")

    def _rounds_of(self, group: Group, link: Link, first: Mapping[Name, Step]) -> None:
        measures: dict[str, Measure] = {way: partial(self._measured, group, way, link) for way in WAYS}
        others = {way: measure for way, measure in measures.items() if way != RING}
        ring_rounds = min(self._rounds, RING_ROUNDS, int(RING_S / first[RING].seconds))
        if ring_rounds < 2:
            ring_rounds = 0
        for index in range(self._rounds):
            self._say(f"{link}, round {index + 1} of {self._rounds}")
            self._turns.take(measures if index < ring_rounds else others, index)
        if not ring_rounds:
            for case, value in self._values(RING, link, first[RING]).items():
                self._turns.samples[case][RING] = [value]
        self.ring_rounds.append(f"{self._title} {link} {max(1, ring_rounds)}")

    def _measured(self, group: Group, way: Name, link: Link) -> Mapping[str, float]:
        return self._values(way, link, group.step(way, link, self._layers(way, link)))

    def _values(self, way: Name, link: Link, step: Step) -> Mapping[str, float]:
        layers, context, rows = self._layers(way, link), self._split.context, self._split.rows
        return {
            time_case(link, context, rows): 1e3 * step.seconds / layers,
            sent_case(link, context, rows): step.sent_bytes / 1e6 / layers,
        }

    def _layers(self, way: Name, link: Link) -> int:
        """RingAttention over shaped links takes many times longer than all else."""
        return 1 if way == RING and link == SHAPED else self._split.layers

    def _error(self, way: Name, step: Step, exact: Tensor) -> float:
        """The most that any process is off in the first layer. Raises RuntimeError when that is no rounding."""
        most, error, row = float(exact.abs().max()), 0.0, 0
        for outputs in step.outputs:
            rows = outputs.shape[1]
            # Each process has all rows, or those behind the ones of the process before.
            expected = exact if rows == len(exact) else exact[row : row + rows]
            error = max(error, float((outputs[0].double() - expected).abs().max()) / most)
            row += rows
        if not error <= TOLERANCE:
            raise RuntimeError(f"{way} is off by {error:.2%} over {self._title}")
        return error


def _splits(processes: int) -> list[Split]:
    """Decode steps, then chunks, whose layers take so long that one is enough."""
    found = []
    for context in CONTEXTS:
        layer = Split(context, processes, 1, HEADS_13B, DIM_13B)
        layers = max(1, min(LAYERS_13B, STEP_BYTES // layer.layer_bytes))
        found.append(Split(context, processes, layers, HEADS_13B, DIM_13B))
    chunks = [Split(context, processes, 1, HEADS_13B, DIM_13B, CHUNK_ROWS) for context in CHUNK_CONTEXTS]
    return found + chunks


def _quick_splits(processes: int) -> list[Split]:
    found = [Split(context, processes, layers=2, heads=4, dim=64) for context in QUICK_CONTEXTS]
    return found + [Split(context, processes, 2, 4, 64, QUICK_CHUNK_ROWS) for context in QUICK_CHUNK_CONTEXTS]


def _load(split: Split) -> Load:
    return "decode" if split.rows == 1 else "chunk"


def _title(split: Split) -> str:
    tokens = f"{split.context / 1024:g}K tokens"
    return tokens if split.rows == 1 else f"a chunk of {split.rows} behind {tokens}"


def _pools_bytes(split: Split) -> int:
    """Once split by rBlocks, once by heads."""
    return 2 * split.layers * split.layer_bytes


main = benchmark(
    "distattention",
    measure,
    HELP,
    [
        click.Option(
            ["--processes"],
            type=click.Choice(["2", "4"]),
            callback=lambda _ctx, _option, value: int(value),
            default="2",
            show_default=True,
            help="That the keys are split over.",
        ),
        click.Option(
            ["--load"],
            type=click.Choice(["all", "decode", "chunk"]),
            default="all",
            show_default=True,
            help="Decode steps, chunks, or both.",
        ),
    ],
    unit_of=unit_of,
    packages=("torch",),
    rounds=(11, 2),
    plot=partial(write_lines, along="K tokens of context", log=True),
    table=show_lines,
)
