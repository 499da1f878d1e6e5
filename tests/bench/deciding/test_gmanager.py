"""distkv bench gmanager: it completes, and says what it could not show."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import msgspec
import pytest
import zmq

from distkv.bench.deciding import gmanager
from distkv.bench.deciding.gmanager import (
    CPU,
    DEATH_BYTES,
    JOIN,
    JOIN_BYTES,
    JOIN_QUERY,
    LATE,
    MEMORY,
    OWN_CPU,
    QUICK,
    main,
)
from distkv.bench.harness.report import Report
from distkv.bench.workloads.deciding.gmanager_queries import NoAnswer, QueryProcess, QueryRun
from distkv.bench.workloads.deciding.heartbeat_frames import BLOCKS, HeartbeatFrames
from distkv.cli.exit_codes import run
from distkv.wire.inboxes import GMANAGER_PORT
from distkv.wire.messages.to_gmanager import Heartbeat

pytestmark = pytest.mark.timeout(120)


@pytest.mark.slow
def test_quick_shows_growth_and_leaves_the_goals_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(gmanager, "QUICK", msgspec.structs.replace(QUICK, rounds=1))
    written, drawn = tmp_path / "gmanager.json", tmp_path / "gmanager.png"
    assert main.main(["--quick", "--json", str(written), "--plot", str(drawn)], standalone_mode=False) == 0
    report = msgspec.json.decode(written.read_bytes(), type=Report)
    rows = {(row.case, row.variant): row.median for row in report.results}
    few, many = (f"{count:,}" for count in QUICK.instances)
    assert {variant for _, variant in rows} == {few, many}
    assert rows[CPU, few] > 0 and rows["Locate, p99", many] > 0
    assert rows[LATE, many] >= 0 and rows[OWN_CPU, many] > 0 and rows[MEMORY, many] > 10
    assert rows["heartbeats", many] == pytest.approx(100, rel=0.5)
    copies = rows[DEATH_BYTES, many] / rows[DEATH_BYTES, few]
    assert copies == pytest.approx(99 / 9, rel=0.1), "one small message to each of the others"
    assert rows[JOIN, many] > rows[JOIN, few] > 0 and rows[JOIN_QUERY, many] > 0
    lists = rows[JOIN_BYTES, many] / rows[JOIN_BYTES, few]
    assert 20 < lists < 200, "each of ten times as many gets each of ten times as many"
    assert len(report.goals) == 4 and all(goal.met is None for goal in report.goals)
    assert drawn.stat().st_size > 10_000


def test_queries_that_are_not_answered_end_the_run() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        with QueryProcess(f"tcp://127.0.0.1:{port}", answer_s=0.05) as queries:
            queries.tell(QueryRun(num_instances=10, seconds=0.1, per_s=100.0))
            with pytest.raises(NoAnswer, match=r"not answered within 0\.05 s"):
                while queries.result() is None:
                    assert silent.poll(10_000), "no query came"
        silent.close(linger=0)


def test_heartbeats_written_in_place_are_what_an_instance_sends() -> None:
    frames = HeartbeatFrames()
    for number in range(3):
        frames.add(f"instance-{number:05d}")
    for number, seq in ((0, 1), (1, 1), (2, 2), (0, 65536), (2, 10**6)):
        envelope = GMANAGER_PORT.decode(bytes(frames.frame(number, seq)))
        name, beat = f"instance-{number:05d}", envelope.body
        assert isinstance(beat, Heartbeat)
        assert (envelope.id, envelope.sender, beat.instance_id) == (f"{name}-{seq:08d}", name, name)
        assert (beat.seq, beat.base, beat.full) == (seq, seq - 1, seq == 1)
        (placed,) = beat.entries
        assert (placed.req_id, placed.inst_id, placed.num_blocks) == (f"request-{seq % 3}", name, 1 + seq % 9)
        assert beat.lendable_blocks <= beat.free_blocks < beat.total_blocks == BLOCKS


def test_an_interrupted_run_keeps_what_it_has_of_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter(range(10))

    def one(*_: object) -> dict[str, float]:
        if (number := next(rounds)) == QUICK.rounds + 1:
            raise KeyboardInterrupt
        return {CPU: float(number), LATE: 0.5}

    for name, made in (("_gmanager", MagicMock()), ("Fleet", MagicMock()), ("QueryProcess", MagicMock())):
        monkeypatch.setattr(gmanager, name, lambda *_, made=made, **__: nullcontext(made))
    monkeypatch.setattr(gmanager, "_round", one)
    written = tmp_path / "gmanager.json"
    assert run(main, ["--quick", "--json", str(written)]) == 130
    report = msgspec.json.decode(written.read_bytes(), type=Report)
    few, many = (f"{count:,}" for count in QUICK.instances)
    rows = {(row.case, row.variant): (row.median, row.unit) for row in report.results}
    assert rows == {
        (CPU, few): (0.5, "% of one core"),
        (CPU, many): (2.0, "% of one core"),
        (LATE, few): (0.5, "ms"),
        (LATE, many): (0.5, "ms"),
    }
