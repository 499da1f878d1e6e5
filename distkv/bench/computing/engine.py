"""`distkv bench engine`: one instance beside other engines on the same checkpoint, and beside what memory allows.

Every engine has the same number of threads, its model loaded, and the processors to itself while it is its turn.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from distkv.bench.baselines import cases
from distkv.bench.baselines.checkpoints import MODELS, Model, checkpoint
from distkv.bench.baselines.cluster import OneInstance
from distkv.bench.baselines.comparison import OURS, Comparison, Contender
from distkv.bench.baselines.goals import goals_of, outside_goal
from distkv.bench.baselines.process import BaselineFailed, BaselineProcess
from distkv.bench.baselines.setup import BASELINES, CACHE, python_of
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.finite import FiniteRange
from distkv.bench.harness.report import Result
from distkv.bench.harness.timing.bandwidth import Bandwidth

HELP = """One instance beside transformers, llama.cpp and vLLM on the same random checkpoint: decode after prompts of
several lengths, a batch, prefill. Engines take turns; the memory bandwidth is measured around every sample, and the
rate at which memory could feed a decode step stands beside theirs.

\b
Environments of the baselines, once:
  python -m distkv.bench.baselines.setup transformers
  python -m distkv.bench.baselines.setup llamacpp
  python -m distkv.bench.baselines.setup vllm

\b
Examples:
  distkv bench engine --peers transformers,llamacpp,vllm --model b --json b.json --plot b.png
  distkv bench engine --quick
"""


class Contenders:
    """The contenders of a run; `left_out` says which baselines are not among them and why."""

    def __init__(self, stack: ExitStack, model: Path, tokens: int, sequences: int, threads: int) -> None:
        self._stack, self._model, self._threads = stack, model, threads
        self._tokens, self._sequences = tokens, sequences
        self._logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distkv-bench-")))
        self.contenders: list[Contender] = []
        self.settings: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def add_ours(self) -> OneInstance:
        """Start distkv."""
        ours = OneInstance(self._model, self._threads, self._tokens)
        self._stack.callback(ours.close)
        self.contenders.append(Contender(OURS, OURS, ours.generate, tuple(ours.pids)))
        self.settings[OURS] = f"LocalCluster({ours.settings}), streamed by AsyncClient, greedy"
        return ours

    def add(self, name: str, venvs: Path, patience_s: float) -> None:
        """Start a baseline once with each of the settings it is tried with."""
        baseline = BASELINES[name]
        python = python_of(name, venvs)
        if python is None:
            self.left_out[baseline.label] = (
                f"it is not installed: python -m distkv.bench.baselines.setup {name} {venvs}"
            )
            return
        for variant, extra in baseline.settings.items():
            options = ["--model", str(self._model), "--threads", str(self._threads), *extra]
            options += ["--tokens", str(self._tokens), "--sequences", str(self._sequences)]
            label = f"{baseline.label} {variant}"
            try:
                process = BaselineProcess(python, name, options, self._logs / f"{label}.log")
            except BaselineFailed as failed:
                self.left_out[label] = str(failed)
                continue
            self._stack.callback(process.close)
            generate = partial(process.generate, patience_s=patience_s)
            self.contenders.append(Contender(label, baseline.label, generate, (process.pid,)))
            self.settings[label] = {"command": " ".join(process.command), **process.loaded.settings}
            self.versions |= {f"{label}: {name}": value for name, value in process.loaded.versions.items()}


def measure(
    say: Say,
    *,
    quick: bool,
    model: str | None,
    baselines: str | None,
    threads: int,
    rounds: int,
    patience: float,
    cache: Path,
    venvs: Path | None,
) -> Measured:
    """Run it; checkpoints and environments stay in the cache, processes end."""
    shape = MODELS[model or ("tiny" if quick else "b")]
    names = _baseline_names(baselines if baselines is not None else "transformers" if quick else ",".join(BASELINES))
    cache, todo = cache.expanduser().absolute(), cases.QUICK if quick else cases.FULL
    say("making the checkpoint")
    path = checkpoint(shape, cache)
    with ExitStack() as stack:
        tokens = -(-max(case.kv_tokens for case in todo) // 256) * 256
        entered = Contenders(stack, path, tokens, max(case.batch for case in todo), threads)
        say("starting distkv")
        ours = entered.add_ours()
        for name in names:
            say(f"starting {BASELINES[name].label}")
            entered.add(name, (venvs or cache / "venvs").expanduser().absolute(), patience)
        comparison = Comparison(shape, entered.contenders, Bandwidth(threads).bytes_per_s, patience, say)
        for case in todo:
            comparison.run(case, rounds)
        say("counting the time outside model maths")
        outside = [share for case in todo if case.kind == "batch" for share in ours.outside(case, shape.vocab, rounds)]
    left_out = {name: entered.left_out | why for name, why in comparison.left_out.items()}
    facts = {
        "threads": threads,
        "model": _in_words(shape),
        "cores in use before samples, by contenders at most": round(
            max(one.contenders for one in comparison.cores_in_use), 2
        ),
        "cores in use before samples, by other programs in the median": round(
            statistics.median(one.others for one in comparison.cores_in_use), 2
        ),
        "contenders": entered.settings,
        "settings that counted": comparison.chosen,
        "tried, tokens/s": comparison.tried,
        "left out": left_out,
        "first tokens that are distkv's": {
            name: "{} of {}".format(*comparison.agreement(name))
            for name in sorted({one.engine for one in entered.contenders})
        },
    }
    read = Result("streaming read", "memory", **comparison.bandwidth_gb_per_s(), unit="GB/s")
    goals = goals_of(shape.name, todo, comparison.samples, left_out)
    goals += [outside_goal(shape.name, outside)] if any(case.kind == "batch" for case in todo) else []
    return Measured(comparison.samples, tuple(goals), facts, (read,), entered.versions)


def _baseline_names(text: str) -> Sequence[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BASELINES:
            raise click.UsageError(f"there is no baseline {name!r}; expected some of {', '.join(BASELINES)}")
    return names


def _in_words(model: Model) -> str:
    return (
        f"random Llama {model.name}, bfloat16, {model.parameters / 1e6:,.1f}M parameters: hidden {model.hidden}, "
        f"{model.layers} layers, {model.heads}/{model.kv_heads} heads, MLP {model.inner}, vocabulary {model.vocab}"
    )


main = benchmark(
    "engine",
    measure,
    HELP,
    [
        click.Option(["--model"], type=click.Choice(sorted(MODELS)), help="b, or tiny with --quick, if not given."),
        click.Option(
            ["--peers", "baselines"], help="Names with commas; all, or transformers with --quick, if not given."
        ),
        click.Option(
            ["--threads"],
            type=click.IntRange(min=1),
            default=len(os.sched_getaffinity(0)),
            show_default="all CPUs",
            help="CPU threads of each engine.",
        ),
        click.Option(
            ["--patience"],
            type=FiniteRange(min=1),
            default=600.0,
            show_default=True,
            help="Leave a baseline out of cases where one of its samples would take more seconds.",
        ),
        click.Option(
            ["--cache"],
            type=click.Path(file_okay=False, path_type=Path),
            default=CACHE,
            show_default=True,
            help="Directory for checkpoints.",
        ),
        click.Option(
            ["--venvs"],
            type=click.Path(file_okay=False, path_type=Path),
            help="Directory of the baselines' environments; venvs in the cache if not given.",
        ),
    ],
    unit_of=lambda case: "tokens/s",
    packages=("torch", "pyzmq", "msgspec", "uvloop"),
    rounds=(3, 2),
)
