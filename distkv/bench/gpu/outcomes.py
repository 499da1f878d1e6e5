"""A plugin of pytest for a time that may not be enough: what teaches most comes first, and each test has a line of
JSON, written when it ends, so that a limit loses none of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import pytest

VARIABLE = "DISTKV_OUTCOMES"
"""Names the file, to which lines are added; without it there are none."""

FIRST = "DISTKV_FIRST"
"""Names beginnings of tests' names, by commas: those of the first come first, of any other last."""

_LONGEST = 2000


class Outcome(msgspec.Struct, frozen=True):
    """How a test went. detail: the end of what it said when it failed, or why it was skipped."""

    test: str
    outcome: str
    seconds: float
    detail: str = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In every process that runs tests alike. Tests that share a beginning stay as they are: a plugin that is named on
    the command line comes behind each conftest.py, which may sort them, too."""
    beginnings = os.environ.get(FIRST, "").split(",")

    def place(item: pytest.Item) -> int:
        found = (place for place, beginning in enumerate(beginnings) if item.nodeid.startswith(beginning))
        return next(found, len(beginnings))

    items.sort(key=place)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Only the process that shares out the tests writes: it hears of all of them."""
    file = os.environ.get(VARIABLE)
    if file is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    # Of what passes, only the test itself is worth a line.
    if report.passed and report.when != "call":
        return
    detail = "" if report.passed else report.longreprtext[-_LONGEST:]
    found = Outcome(report.nodeid, report.outcome, round(report.duration, 3), detail)
    with Path(file).open("ab") as lines:
        lines.write(msgspec.json.encode(found) + b"\n")
