"""`bin/gpu-check`: the GPU tests and benchmarks one after another, and one report of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from distkv.bench.harness.gpu import gpu_facts, gpu_of
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.errors import ConfigError

TAIL_LINES = 60
REPORT = "{json}"
"""In a command: the file for its report."""


class Part(msgspec.Struct, frozen=True):
    """A command that is run. limit_s: when it is ended. It may write a report."""

    name: str
    command: tuple[str, ...]
    limit_s: float


class Done(msgspec.Struct, frozen=True):
    """How a part went. exit_code: None when it was ended for taking too long. output: its last lines."""

    name: str
    command: str
    exit_code: int | None
    seconds: float
    output: str
    report: Any = None


def parts_of(device: str) -> tuple[Part, ...]:
    """All of them: within eight minutes."""
    python, bench = sys.executable, (sys.executable, "-m", "distkv.cli.main", "bench")
    tests = (python, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests")
    return (
        Part("tests", tests, 200),
        Part("attention", (*bench, "attention", "--device", device, "--rounds", "5", "--json", REPORT), 150),
        Part("step", (*bench, "step", "--device", device, "--batches", "1,8,64", "--json", REPORT), 120),
    )


def run(part: Part, folder: Path) -> Done:
    """Run it to its end or its limit."""
    file = folder / f"{part.name}.json"
    command = [str(file) if word == REPORT else word for word in part.command]
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=part.limit_s, text=True
        )
        exit_code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        exit_code, output = None, error.stdout.decode(errors="replace") if error.stdout else ""
    return Done(
        part.name,
        " ".join(("python", *part.command[1:])),
        exit_code,
        round(time.monotonic() - started_s, 1),
        "\n".join(output.splitlines()[-TAIL_LINES:]),
        msgspec.json.decode(file.read_bytes()) if file.exists() else None,
    )


def as_text(facts: dict[str, Any], done: Sequence[Done]) -> str:
    """The report to be read."""
    lines = ["distkv on a GPU", "", *(f"{name}: {value}" for name, value in facts.items()), ""]
    for one in done:
        how = "ended at its time limit" if one.exit_code is None else f"exit code {one.exit_code}"
        lines += [f"{one.name}: {how} after {one.seconds} s", f"    {one.command}", "", one.output, ""]
    return "\n".join(lines)


def write(folder: Path, facts: dict[str, Any], done: Sequence[Done]) -> Path:
    """gpu-DATE.json and gpu-DATE.txt in `folder`; returns the text's path."""
    text = folder / f"gpu-{facts['date']}.txt"
    whole = msgspec.json.encode({"machine": facts, "parts": done})
    text.with_suffix(".json").write_bytes(msgspec.json.format(whole, indent=2) + b"\n")
    text.write_text(as_text(facts, done), encoding="utf-8")
    return text


@click.command(help="Run the GPU tests and benchmarks, and write one report: gpu-DATE.json and gpu-DATE.txt.")
@click.option("--device", default="cuda", show_default=True, help="cuda, or cuda:N.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/benchmarks"),
    show_default=True,
    help="Where the report goes.",
)
def main(device: str, out: Path) -> None:
    """See the command's help."""
    try:
        gpu = gpu_of(device)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    facts = machine_facts() | gpu_facts(gpu) | versions_of(("torch", "triton", "flashinfer-python"))
    out.mkdir(parents=True, exist_ok=True)
    done = []
    try:
        with tempfile.TemporaryDirectory() as reports:
            for part in parts_of(device):
                click.echo(f"{part.name}, at most {part.limit_s:.0f} s", err=True)
                done.append(run(part, Path(reports)))
    finally:
        if done:  # also when it is interrupted
            click.echo(write(out, facts, done).read_text(encoding="utf-8"))
    sys.exit(0 if all(one.exit_code == 0 for one in done) else 1)


if __name__ == "__main__":
    main()
