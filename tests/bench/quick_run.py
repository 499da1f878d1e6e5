"""A benchmark as `--quick` runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch


def quick_report(main: click.Command, folder: Path, *arguments: str) -> dict[str, Any]:
    """What it wrote, its figures in order and its rates above 0. torch has as many threads afterwards as before."""
    file, threads = folder / "report.json", torch.get_num_threads()
    try:
        assert main.main(["--quick", "--json", str(file), *arguments], standalone_mode=False) == 0
    finally:
        torch.set_num_threads(threads)
    report: dict[str, Any] = json.loads(file.read_text())
    assert report["results"] and all(0 <= row["min"] <= row["median"] <= row["max"] for row in report["results"])
    assert all(row["min"] > 0 for row in report["results"] if row["unit"].endswith("/s"))
    return report


def drawn_report(main: click.Command, folder: Path, *arguments: str) -> dict[str, Any]:
    """The same, drawn too."""
    picture = folder / "report.png"
    report = quick_report(main, folder, "--plot", str(picture), *arguments)
    assert picture.stat().st_size
    return report
