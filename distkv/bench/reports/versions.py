"""`distkv bench versions`: this checkout beside another one, benchmark by benchmark, in turns.

Each sample is one process of one checkout with the same interpreter, so that nothing of one version warms or slows the
other. A case counts with what distkv did in it; other contenders of the benchmark only share its time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import msgspec

import distkv
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.plots.units import better
from distkv.bench.harness.report import Goal, Report
from distkv.bench.serving.smoke import unit_of
from distkv.errors import ConfigError

THIS, OTHER = "this checkout", "other checkout"
NOT_OURS = {"transformers", "memory limit"}
RUNS = {
    "step": "step --model b --threads 1 --rounds 2 --batches 1,4,8,16 --contexts 128,2048",
    "smoke": "smoke --rounds 2",
}
QUICK_RUNS = {"step": "step --quick --threads 1 --rounds 1 --contexts 64"}
HELP = """This checkout beside another one: bench step and bench smoke of both in turns, each sample in a process of its
own, with the 95 % interval of the ratio. OTHER is the root of a checkout whose native kernels are built.

\b
Examples:
  distkv bench versions ../distkv-0.1 --json versions.json --plot versions.png
"""


def measure(say: Say, *, quick: bool, other: Path, rounds: int) -> Measured:
    """Run it. Raises ConfigError when a checkout is none or one of its runs fails."""
    here = Path(distkv.__file__).resolve().parents[1]
    other = other.resolve()
    for root in (here, other):
        if not (root / "distkv" / "bench").is_dir():
            raise ConfigError(
                "other", f"{root} is no checkout of distkv", "give the directory that holds pyproject.toml"
            )
    runs = QUICK_RUNS if quick else RUNS
    samples: Samples = {}
    for name, arguments in runs.items():
        contenders = {label: partial(_sample, root, arguments) for label, root in ((THIS, here), (OTHER, other))}
        samples |= alternate(contenders, rounds, report=lambda what, name=name: say(f"{name}, {what}"))  # type: ignore[misc]
    facts = {"runs": {name: f"distkv bench {arguments}" for name, arguments in runs.items()}}
    return Measured(samples, tuple(_no_slower(case, variants) for case, variants in samples.items()), facts)


def _sample(root: Path, arguments: str) -> Mapping[str, float]:
    """Medians of what distkv did in each case of one run."""
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        written = Path(scratch) / "report.json"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "distkv.cli.main", "bench", *arguments.split(), "--json", str(written)],
            cwd=scratch,
            env=os.environ | {"PYTHONPATH": str(root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ConfigError("other", f"bench {arguments.split()[0]} of {root} failed: {done.stderr.strip()[-500:]}")
        report = msgspec.json.decode(written.read_bytes(), type=Report)
    return {
        row.case if row.variant == "distkv" else f"{row.case}, {row.variant}": row.median
        for row in report.results
        if row.variant not in NOT_OURS
    }


def _no_slower(case: str, variants: Mapping[str, list[float]]) -> Goal:
    """Met unless the whole 95 % interval of the speed ratio lies below 1."""
    ours, theirs = variants[THIS], variants[OTHER]
    ratio = paired_ratio(theirs, ours) if better(unit_of(case)) == "lower" else paired_ratio(ours, theirs)
    return Goal(f"{case}: speed against the other checkout", "95 % interval reaches 1", str(ratio), ratio.high >= 1.0)


main = benchmark(
    "versions",
    measure,
    HELP,
    [
        click.Argument(["other"], type=click.Path(path_type=Path, exists=True, file_okay=False)),
    ],
    unit_of=unit_of,
    packages=("torch", "msgspec", "pyzmq"),
    rounds=(8, 2),
)
