"""What others compute meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distkv.bench.harness import machine
from distkv.bench.harness.machine import Others, busy_s

BURNS = "import time; [None for _ in iter(lambda: time.process_time() < 0.5, False)]"


def test_idle_and_waiting_cores_are_not_busy() -> None:
    stat = "cpu  100 20 30 5000 700 4 5 6 1000 2000\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
    assert busy_s(stat) == (100 + 20 + 30 + 4 + 5 + 6) / os.sysconf("SC_CLK_TCK")


def test_what_this_process_and_its_children_compute_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a machine that does nothing else."""
    before = sum(os.times()[:4])
    monkeypatch.setattr(machine, "busy_s", lambda _: 1000.0 + sum(os.times()[:4]) - before)
    others = Others()
    subprocess.run([sys.executable, "-c", BURNS], check=True)
    assert sum(os.times()[:4]) - before >= 0.4
    assert others.cores() == pytest.approx(0.0, abs=1e-6)


def test_what_others_compute_is_counted() -> None:
    others, before = Others(), sum(os.times()[:4])
    child = subprocess.Popen([sys.executable, "-c", BURNS])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert others.cores() > 0, "a child that nobody has waited for yet"
    child.wait()
    assert sum(os.times()[:4]) - before >= 0.4
