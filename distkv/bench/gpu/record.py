"""The report of a GPU check, in two files that hold all that is known at any time."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from distkv.bench.gpu.running import Done


class Record:
    """gpu-DATE.json and gpu-DATE.txt in a directory; written anew, whole or not at all, when a stage says something.
    Those of a later run of the same day have its number behind the date: no run overwrites another's."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        names = (f"gpu-{facts['date']}{f'-{number}' if number > 1 else ''}.txt" for number in itertools.count(1))
        self.text = next(file for name in names if not (file := folder / name).exists())
        self._facts = facts
        self._stages: dict[str, Done] = {}

    def put(self, done: Done) -> None:
        """Replaces what was known of that stage."""
        self._stages[done.name] = done
        stages = list(self._stages.values())
        whole = msgspec.json.encode({"machine": self._facts, "stages": stages})
        _replace(self.text.with_suffix(".json"), msgspec.json.format(whole, indent=1) + b"\n")
        _replace(self.text, as_text(self._facts, stages).encode())


def as_text(facts: dict[str, Any], stages: list[Done]) -> str:
    """The report to be read."""
    lines = ["distkv on a GPU", "", *(f"{name}: {value}" for name, value in facts.items()), ""]
    lines += [f"{one.name}: {_how(one)}" for one in stages]
    for one in stages:
        lines += ["", f"{one.name}: {_how(one)}", f"    {one.command}", "", one.output]
    return "\n".join(lines) + "\n"


def _how(done: Done) -> str:
    how = done.why or f"exit code {done.exit_code}"
    counts = Counter(row["outcome"] for row in _rows(done.report) if "outcome" in row)
    counted = "".join(f", {count} {outcome}" for outcome, count in sorted(counts.items()))
    return f"{how} after {done.seconds} s{counted}"


def _rows(report: Any) -> list[dict[str, Any]]:
    """Of a report that is a list of cases or tests."""
    return [row for row in report if isinstance(row, dict)] if isinstance(report, list) else []


def _replace(path: Path, body: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(body)
    part.replace(path)
