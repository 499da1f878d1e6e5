"""`distkv bench distattention`: attention of one decode step over several processes, in three ways (001 Fig. 11).

DistAttention, tensor parallelism by heads and RingAttention, by turns over the same keys, within a host and over links
of 125 MB/s. Each is checked against attention in float64 before it is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
from torch import Tensor

from distkv.bench.harness.alternate import Measure, Turns
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.plot import write_lines
from distkv.bench.harness.report import Report, results, show_lines
from distkv.bench.split_attention.goals import goals_of, sent_case, time_case, unit_of
from distkv.bench.split_attention.group import Group, Step
from distkv.bench.split_attention.network import RATE_MB_S, Place, missing, shaped_network
from distkv.bench.split_attention.split import Split, exact_attention
from distkv.bench.split_attention.ways import DIST, HEADS, HOST, OUT_DTYPES, RING, SHAPED, WAYS, Link, Name

LINKS: tuple[Link, ...] = (HOST, SHAPED)
CONTEXTS = tuple(2**exponent << 10 for exponent in range(2, 9))
QUICK_CONTEXTS = (512, 1024)
HEADS_13B, DIM_13B, LAYERS_13B = 40, 128, 40
STEP_BYTES = 5 << 28
"""A step has as many layers as have so many bytes of keys and values, so that no cache has what it reads."""
TOLERANCE = 0.01
"""Of results, beside the largest number of the exact ones: keys, queries and some outputs are bfloat16."""
RING_S = 15.0
"""RingAttention over shaped links is played once where all its rounds would take longer."""
MEMORY_SHARE = 0.75
"""Of the memory that is available, what the pools of all processes may take."""
HELP = """Attention of one decode step of LLaMA2-13B's shapes (40 heads of 128, bfloat16) over 4K to 256K tokens,
split over processes in three ways: DistAttention, tensor parallelism by heads, RingAttention. By turns over the same
keys, with the processes on one host, and joined by links of 125 MB/s where this is root; the time of a layer, and what
it sends.

\\b
Examples:
  distkv bench distattention --json distattention.json --plot distattention.png
  distkv bench distattention --processes 4
  distkv bench distattention --quick
"""


def measure(say: Say, *, quick: bool, processes: int, rounds: int | None) -> Measured:
    """Run it; the report and its samples. Nothing that it started is left on return."""
    rounds = rounds or (2 if quick else 7)
    facts = machine_facts()
    splits = [_split(context, processes, quick=quick) for context in (QUICK_CONTEXTS if quick else CONTEXTS)]
    available_bytes = _available_bytes()
    fitting = [split for split in splits if _pools_bytes(split) <= MEMORY_SHARE * available_bytes]
    turns, errors, once = Turns(), dict.fromkeys(WAYS, 0.0), []
    no_network = missing()
    with ExitStack() as stack:
        places = () if no_network else stack.enter_context(shaped_network(processes))
        for split in fitting:
            bench = _Bench(say, split, turns, rounds, places)
            for way, error in bench.run().items():
                errors[way] = max(errors[way], error)
            once += bench.played_once
    samples = turns.samples
    machine = facts | {
        "model": f"attention of LLaMA2-13B, {HEADS_13B} heads of {DIM_13B}, bfloat16; one decode step",
        "placed": f"{processes} processes of one thread each, on {min(processes, facts['cores'])} cores",
        "links": "Unix sockets and mapped pools; " + (no_network or f"{RATE_MB_S} MB/s each way by tc tbf"),
        "left_out": ", ".join(f"{one.context >> 10}K: memory" for one in splits if one not in fitting) or "nothing",
        "played_once": ", ".join(once) or "nothing",
        "off_by": ", ".join(f"{way} {error:.2%}" for way, error in errors.items()) + " of the largest exact number",
        "command": f"distkv bench distattention --processes {processes} --rounds {rounds}"
        + (" --quick" if quick else ""),
        "contenders": {
            DIST: "the rBlocks are split; queries in bfloat16 to creditors, partials back in "
            f"{OUT_DTYPES[HOST]} within a host and {OUT_DTYPES[SHAPED]} between",
            HEADS: "the heads are split; no queries travel, and outputs are gathered by all in one hop, in the same "
            "dtypes; the all-reduce that a layer does instead would send at least twice as much",
            RING: "the rBlocks are split, and the one query is where the first of them are; all others come there, "
            "also ahead for the next layer, by mapped reads within a host; attended to piece by piece meanwhile",
        },
    }  # fmt: skip
    goals = goals_of(samples, [split.context for split in fitting], no_network)
    units = {case: unit_of(case) for case in samples}
    return Report("distattention", machine, versions_of(("torch",)), results(samples, units), goals), samples


class _Bench:
    """One split. played_once: what was, of what plays rounds."""

    def __init__(self, say: Say, split: Split, turns: Turns, rounds: int, places: Sequence[Place]) -> None:
        self._split, self._turns, self._rounds, self._places = split, turns, rounds, places
        self._report = say
        self._title = f"{split.context / 1024:g}K tokens"
        self.played_once: list[str] = []

    def run(self) -> dict[Name, float]:
        """Measure all ways; returns how far each is off."""
        self._say("exact attention")
        exact = exact_attention(self._split, 0)
        self._say("drawing keys")
        errors: dict[Name, float] = dict.fromkeys(WAYS, 0.0)
        with Group(self._split, self._places) as group:
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
        variants: dict[str, Measure] = {way: partial(self._measured, group, way, link) for way in WAYS}
        seconds = first[RING].seconds
        if link == SHAPED and seconds * self._rounds > RING_S:
            del variants[RING]
        for index in range(self._rounds):
            self._say(f"{link}, round {index + 1} of {self._rounds}")
            self._turns.take(variants, index)
        if RING not in variants:
            for case, value in self._values(RING, link, first[RING]).items():
                self._turns.samples[case][RING] = [value]
            self.played_once.append(f"{RING} over {self._title} and shaped links")

    def _measured(self, group: Group, way: Name, link: Link) -> Mapping[str, float]:
        return self._values(way, link, group.step(way, link, self._layers(way, link)))

    def _values(self, way: Name, link: Link, step: Step) -> Mapping[str, float]:
        layers, context = self._layers(way, link), self._split.context
        return {
            time_case(link, context): 1e3 * step.seconds / layers,
            sent_case(link, context): step.sent_bytes / 1e6 / layers,
        }

    def _layers(self, way: Name, link: Link) -> int:
        """RingAttention over shaped links takes many times longer than all else."""
        return 1 if way == RING and link == SHAPED else self._split.layers

    def _error(self, way: Name, step: Step, exact: Tensor) -> float:
        """The most that any process is off in the first layer. Raises RuntimeError when that is no rounding."""
        most = exact.abs().max()
        error = max(float((outputs[0].double() - exact).abs().max() / most) for outputs in step.outputs)
        if not error <= TOLERANCE:
            raise RuntimeError(f"{way} is off by {error:.2%} over {self._title}")
        return error


def _split(context: int, processes: int, *, quick: bool) -> Split:
    if quick:
        return Split(context, processes, layers=2, heads=4, dim=64)
    one = Split(context, processes, layers=1, heads=HEADS_13B, dim=DIM_13B)
    return Split(context, processes, max(1, min(LAYERS_13B, STEP_BYTES // one.layer_bytes)), HEADS_13B, DIM_13B)


def _pools_bytes(split: Split) -> int:
    """Once split by rBlocks, once by heads."""
    return 2 * split.layers * split.layer_bytes


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise RuntimeError("the kernel does not say how much memory is available")


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
        click.Option(["--rounds"], type=click.IntRange(min=1), help="How often each way is played."),
    ],
    unit_of=unit_of,
    plot=partial(write_lines, along="K tokens of context", log=True),
    table=show_lines,
)
