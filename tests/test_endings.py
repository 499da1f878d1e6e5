"""How a process ended, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv import endings
from distkv.endings import describe_exit, oom_kills


def test_exit_codes_and_signals() -> None:
    assert describe_exit(2) == "it exited with code 2"
    assert describe_exit(-15) == "it was killed by SIGTERM"
    assert describe_exit(-9) == "it was killed by SIGKILL"
    assert describe_exit(-63) == "it was killed by signal 63"


def test_who_is_killed_while_memory_runs_out_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "oom_kills", lambda: 4)
    assert "for want of memory" in describe_exit(-9, 3)
    for code, before in ((-9, 4), (-9, None), (-15, 3), (1, 3)):
        assert "memory" not in describe_exit(code, before)


def test_the_machine_counts_what_it_kills(tmp_path: Path) -> None:
    events = tmp_path / "vmstat"
    assert oom_kills(events) == 0
    events.write_text("nr_free_pages 7\noom_kill 15\n")
    assert oom_kills(events) == 15
    assert oom_kills() >= 0
