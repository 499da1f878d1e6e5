"""`distkv bench smoke`: one instance beside transformers, and one request on three instances beside one.

All in float32 with the same number of threads per process. distkv is measured from the client, transformers inside its
process. The one instance has as much KV memory as the three together.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import msgspec

from distkv.bench.harness.alternate import Samples, alternate
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.contenders import Timing, Transformers, ask_cluster, require_transformers
from distkv.bench.harness.report import Goal, results
from distkv.client.local.cluster import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint

INSTANCES = 3
HELP = """Prefill and decode of one instance beside transformers, and of a prompt that only three instances together can
hold beside one instance with the memory of all three; variants by turns, medians and spread.

\b
Examples:
  distkv bench smoke --json smoke.json --plot smoke.png
  distkv bench smoke --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. pool_tokens: of each of the three instances."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    prompt_tokens: int
    pool_tokens: int
    max_tokens: int

    @property
    def long_tokens(self) -> int:
        """The prompt that only the three together can hold."""
        return self.pool_tokens * 5 // 2


FULL = Size(512, 8, 8, 4, 8192, prompt_tokens=1024, pool_tokens=1024, max_tokens=64)
QUICK = Size(128, 2, 4, 2, 512, prompt_tokens=256, pool_tokens=512, max_tokens=128)


class Comparison:
    """The variants; each measures a request and returns the values of its cases."""

    def __init__(self, size: Size, one: LocalCluster, three: LocalCluster, theirs: Transformers) -> None:
        draw = random.Random(0)
        ids = [draw.randrange(1, size.vocab) for _ in range(size.long_tokens)]
        short = ids[: size.prompt_tokens]
        self.prefill = f"prefill of {size.prompt_tokens:,} tokens"
        self.decode = f"decode after {size.prompt_tokens:,} tokens"
        self.long_first = f"time to first of {size.long_tokens:,} tokens"
        self.long_decode = f"decode after {size.long_tokens:,} tokens"
        self.beside = {
            "distkv": partial(self._short, partial(ask_cluster, one, short, size.max_tokens)),
            "transformers": partial(self._short, partial(theirs.ask, short, size.max_tokens)),
        }
        self.spread = {
            f"{INSTANCES} x {size.pool_tokens:,} tokens": partial(
                self._long, partial(ask_cluster, three, ids, size.max_tokens)
            ),
            f"1 x {INSTANCES * size.pool_tokens:,} tokens": partial(
                self._long, partial(ask_cluster, one, ids, size.max_tokens)
            ),
        }
        self.answers: dict[str, set[tuple[int, ...]]] = {"short": set(), "long": set()}

    def _short(self, ask: partial[Timing]) -> Mapping[str, float]:
        timing = ask()
        self.answers["short"].add(timing.token_ids)
        return {self.prefill: timing.prefill_tokens_per_s, self.decode: timing.decode_tokens_per_s}

    def _long(self, ask: partial[Timing]) -> Mapping[str, float]:
        timing = ask()
        self.answers["long"].add(timing.token_ids)
        return {self.long_first: timing.first_s, self.long_decode: timing.decode_tokens_per_s}


def measure(say: Say, *, quick: bool, threads: int, rounds: int) -> Measured:
    """Run it. Nothing that it started or wrote is left on return."""
    require_transformers()
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        model = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distkv-bench-"))) / "model"
        say("making a checkpoint and starting instances")
        shape = {name: getattr(size, name) for name in ("hidden", "layers", "heads", "kv_heads", "vocab")}
        make_checkpoint(model, **shape)
        one, three = (
            stack.enter_context(LocalCluster(model, count, tokens, dtype="float32", threads=threads, gateway=False))
            for count, tokens in ((1, INSTANCES * size.pool_tokens), (INSTANCES, size.pool_tokens))
        )
        comparison = Comparison(size, one, three, Transformers(model, threads))
        samples = alternate(comparison.beside, rounds, report=lambda what: say(f"beside transformers, {what}"))
        samples |= alternate(comparison.spread, rounds, report=lambda what: say(f"spread over instances, {what}"))
    facts = {
        "threads": threads,
        "model": f"random Llama, float32, {', '.join(f'{name} {value}' for name, value in shape.items())}",
        "contenders": {
            "distkv": "LocalCluster, Python client, greedy, default settings",
            "transformers": Transformers.SETTINGS,
        },
    }
    return Measured(samples, _goals(comparison, samples, quick), facts)


def unit_of(case: str) -> str:
    """Of a case of this benchmark."""
    return "s" if case.startswith("time to") else "tokens/s"


def _goals(comparison: Comparison, samples: Samples, quick: bool) -> tuple[Goal, ...]:
    rows = {(row.case, row.variant): row.median for row in results(samples, unit_of)}
    beside = "; ".join(
        f"{case}: " + ", ".join(f"{variant} {rows[case, variant]:,.1f} tokens/s" for variant in comparison.beside)
        for case in (comparison.prefill, comparison.decode)
    )
    equal = all(len(answers) == 1 for answers in comparison.answers.values())
    return (
        Goal(
            goal="prefill and decode of one instance and of transformers are measured, whichever is faster",
            target="both measured",
            measured=beside,
            met=None if quick else True,
            why="a quick run measures too little to compare" if quick else "",
        ),
        Goal(
            goal="all contenders give the same tokens",
            target="one answer per prompt",
            measured=", ".join(f"{len(answers)} to the {name} prompt" for name, answers in comparison.answers.items()),
            met=equal,
            why="" if equal else "the rates above compare different work",
        ),
    )


main = benchmark(
    "smoke",
    measure,
    HELP,
    [
        click.Option(
            ["--threads"], type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of each engine."
        ),
    ],
    unit_of=unit_of,
    packages=("torch", "transformers", "pyzmq", "msgspec", "uvloop"),
    rounds=(7, 2),
)
