"""What programs used: this one and those that it started, or others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from distkv.bench.harness.timing import processes
from distkv.bench.harness.timing.processes import OtherPrograms, cpu_seconds, family_seconds

BUSY = "import time\nwhile time.process_time() < 0.3: pass"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NAME = "(of (any) kind)"


class Machine:
    """Its /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def used(self, user_s: float, steal_s: float = 0.0) -> None:
        """By all programs, beside a time in which nothing ran or interrupts were served."""
        ticks = [user_s * TICKS_PER_S, 0, 0, 1e9, 1e9, 1e9, 1e9, steal_s * TICKS_PER_S, 0, 0]
        (self.root / "stat").write_text("cpu  " + " ".join(str(round(one)) for one in ticks) + "\ncpu0 1 2\n")

    def runs(self, pid: int, parent: int, user_s: float, of_ended_children_s: float = 0.0) -> None:
        (self.root / str(pid)).mkdir(exist_ok=True)
        ticks = [round(seconds * TICKS_PER_S) for seconds in (user_s, 0, of_ended_children_s, 0)]
        fields = [pid, NAME, "S", parent, *(0 for _ in range(9)), *ticks, 20]
        (self.root / str(pid) / "stat").write_text(" ".join(map(str, fields)))


def test_other_programs_are_all_but_this_one_and_those_that_it_started(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    machine, own = Machine(tmp_path), os.getpid()
    child, grandchild, stranger = own + 1, own + 2, own + 3
    machine.used(100)
    machine.runs(own, 1, 10)
    machine.runs(child, own, 10)
    machine.runs(grandchild, child, 5)
    machine.runs(stranger, 1, 50)
    monkeypatch.setattr(processes.time, "monotonic", iter((100.0, 110.0, 110.0)).__next__)
    others = OtherPrograms()

    machine.used(109)
    machine.runs(own, 1, 12)
    machine.runs(child, own, 11, of_ended_children_s=8)  # and there is no grandchild any more
    (tmp_path / str(grandchild) / "stat").unlink()
    assert others.cores() == 0.3, "2 + 1 + 3 of 9 were its own"

    machine.used(109, steal_s=4)
    assert others.cores() == 0.7


def test_the_time_of_real_processes_is_found() -> None:
    own = [os.getpid()]
    before_s = family_seconds(own)
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert 0.25 <= family_seconds(own) - before_s <= 3.0
    assert cpu_seconds(os.getpid()) > 0
    assert family_seconds([]) == 0
