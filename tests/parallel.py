"""How the workers of pytest-xdist share the tests: those that start clusters and other processes run one after another
on one worker, which mostly waits for them, while another computes what needs none."""

from __future__ import annotations

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

PROCESSES = (
    "tests/actors/",
    "tests/bench/",
    "tests/cli/",
    "tests/client/",
    "tests/clients/",
    "tests/cluster/",
    "tests/demo/",
    "tests/deploy/",
    "tests/gateway/",
    "tests/offline/",
)
"""They share clusters and fixed ports, take all processors when their processes start, and look at times."""
ONE_BY_ONE = ("tests/sim/", "tests/kernels/", "tests/project/test_native_build.py")
"""Modules of which single tests take long."""
NICENESS = 5
STARTED_WITH = os.nice(0)


def unit_of(nodeid: str) -> str:
    """Tests of one unit run on one worker: all that start processes; else those of a module, or only this test."""
    if nodeid.startswith(PROCESSES):
        return "processes"
    return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


def rank_of(nodeid: str) -> int:
    """Units of the lowest are begun first: what takes longest, and last what fills the gaps."""
    if nodeid.startswith(PROCESSES):
        return 0
    return 1 if nodeid.startswith(ONE_BY_ONE) else 2


def yield_to_processes(nodeid: str) -> None:
    """What computes beside clusters takes the time that they leave."""
    if not nodeid.startswith(PROCESSES) and os.nice(0) == STARTED_WITH:
        os.nice(NICENESS)


class Sharing(LoadScopeScheduling):
    """A worker that has done its unit takes the next one, in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of tests, which says nothing here

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
