"""`bin/gpu-check`: the stages one after another within a budget of time, and one report of them."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from distkv.bench.gpu.record import Record
from distkv.bench.gpu.running import Done, run
from distkv.bench.gpu.stages import Stage, stages_of
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.timing.gpu import gpu_facts, gpu_of
from distkv.errors import ConfigError

VERSIONS = ("torch", "triton", "flashinfer-python", "pytest")
LEAST_S = 5.0
"""With less left, a stage is not begun."""


class Budget:
    """Seconds for all stages together, and for those that have a limit of their own. Clocks start when it is made."""

    def __init__(self, given: Sequence[str], stages: Sequence[Stage]) -> None:
        """given: SECONDS, or NAME=SECONDS. Raises click.BadParameter."""
        self._ends_s = float("inf")
        self._limits_s = {stage.name: stage.limit_s for stage in stages}
        for one in given:
            name, _, seconds = one.rpartition("=")
            if not seconds.isdecimal() or int(seconds) == 0:
                raise click.BadParameter(f"{one!r} is not a number of seconds", param_hint="--budget")
            if not name:
                self._ends_s = time.monotonic() + int(seconds)
            elif name in self._limits_s:
                self._limits_s[name] = float(seconds)
            else:
                raise click.BadParameter(_unknown(name, list(self._limits_s)), param_hint="--budget")

    def limit_s(self, stage: Stage) -> float:
        """How long it may take from now on."""
        return min(self._limits_s[stage.name], self._ends_s - time.monotonic())


def run_all(stages: Sequence[Stage], budget: Budget, record: Record, out: Path) -> bool:
    """Run them; whether all of them ended well."""
    well = True
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages:
            limit_s = budget.limit_s(stage)
            if limit_s < LEAST_S:
                done = Done(stage.name, why="left out: no time is left")
            else:
                click.echo(f"{stage.name}, at most {limit_s:.0f} s", err=True)
                done = run(stage, Path(folder), out, limit_s, record.put)
            record.put(done)
            well &= done.exit_code == 0 or done.why.startswith("left out: there is no")
    return well


def _unknown(name: str, known: Sequence[str]) -> str:
    return f"there is no stage {name!r}; there are {', '.join(known)}"


def _wanted(names: str | None, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    if names is None:
        return stages
    by_name = {stage.name: stage for stage in stages}
    for name in (wanted := names.split(",")):
        if name not in by_name:
            raise click.BadParameter(_unknown(name, list(by_name)), param_hint="--stages")
    return tuple(stage for stage in stages if stage.name in wanted)


@click.command(help="Run the GPU's checks and benchmarks within a budget of time; gpu-DATE.json and gpu-DATE.txt grow.")
@click.option("--device", default="cuda", show_default=True, help="cuda or cuda:N; cpu runs what Triton interprets.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/benchmarks"),
    show_default=True,
    help="Where the report and the tuned tables go.",
)
@click.option("--budget", multiple=True, metavar="[NAME=]SECONDS", help="For all stages, or for one; may be repeated.")
@click.option("--stages", metavar="NAME,NAME", help="Only these.")
def main(device: str, out: Path, budget: tuple[str, ...], stages: str | None) -> None:
    """See the command's help."""
    if device != "cpu":
        try:
            gpu_of(device)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
    wanted = _wanted(stages, stages_of(device))
    limits = Budget(budget, wanted)
    out.mkdir(parents=True, exist_ok=True)
    facts = machine_facts() | gpu_facts(torch.device(device)) | versions_of(VERSIONS)
    record = Record(out.absolute(), facts)
    # As on Ctrl-C: what runs is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    well = run_all(wanted, limits, record, out.absolute())
    click.echo(record.text.read_text(encoding="utf-8"))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
