"""How the workers of pytest-xdist share the tests: those that start clusters run one after another on one worker, which
mostly waits for them; others run those of clients and gateways and compute what needs no process."""

from __future__ import annotations

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

PROCESSES = {
    "clusters": (
        "tests/actors/",
        "tests/bench/",
        "tests/cli/",
        "tests/clients/",
        "tests/cluster/",
        "tests/demo/",
        "tests/deploy/",
    ),
    "gateways": ("tests/client/", "tests/gateway/", "tests/offline/"),
}
"""Units whose tests share clusters, take all processors when their processes start, and look at times. The second one
has few clusters and mostly talks to instances within the process, so it bears the first one beside it."""
ONE_BY_ONE = ("tests/sim/", "tests/kernels/", "tests/project/test_native_build.py")
"""Modules of which single tests take long."""
NICENESS = 5
STARTED_WITH = os.nice(0)


def processes_of(nodeid: str) -> str | None:
    """The unit of a test that starts processes; None for others."""
    return next((unit for unit, folders in PROCESSES.items() if nodeid.startswith(folders)), None)


def unit_of(nodeid: str) -> str:
    """Tests of one unit run on one worker: those that start processes; else those of a module, or only this test."""
    if (unit := processes_of(nodeid)) is not None:
        return unit
    return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


def rank_of(nodeid: str) -> int:
    """Units of the lowest are begun first: what takes longest, and last what fills the gaps."""
    if (unit := processes_of(nodeid)) is not None:
        return list(PROCESSES).index(unit)
    return len(PROCESSES) + (not nodeid.startswith(ONE_BY_ONE))


def yield_to_processes(nodeid: str) -> None:
    """What computes beside clusters takes the time that they leave."""
    if processes_of(nodeid) is None and os.nice(0) == STARTED_WITH:
        os.nice(NICENESS)


class Sharing(LoadScopeScheduling):
    """A worker that has done its unit takes the next one, in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of tests, which says nothing here

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
