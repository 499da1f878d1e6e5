"""`distkv sim replay`: says whether recordings are decided as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.sim.drawn.cluster import SimCluster
from tests.sim.parts import prompt
from tests.sim.recording import recording


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Of a gManager and of an instance that served one request."""
    with recording() as recorded:
        cluster = SimCluster([40])
        cluster.submit("i0", "r", prompt(20), 5)
        cluster.finish()
    for name, lines in recorded.items():
        (tmp_path / name).write_bytes(b"\n".join(lines))
    return [str(tmp_path / name) for name in sorted(recorded)]


def test_the_same_commands_are_counted(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, ["sim-replay", *files]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "gmanager of distkv 0, " in said[0] and ": the same " in said[1]
    assert run(command, ["sim-replay", *files, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(one["kind"], one["difference"]) for one in results] == [("gmanager", None), ("rmanager", None)]


def test_another_one_is_shown(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(files[1])
    path.write_bytes(path.read_bytes().replace(b'"max_num_batched_tokens":64', b'"max_num_batched_tokens":9'))
    assert run(command, ["sim-replay", *files]) == 1
    said = capsys.readouterr().out
    assert "and then:" in said and '"type":"Step"' in said and max(map(len, said.splitlines())) < 450


@pytest.mark.parametrize("text", ["", "arrival_s\n1\n", '{"record":"event"}\n'])
def test_what_is_no_recording_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text(text, encoding="utf-8")
    assert run(command, ["sim-replay", str(tmp_path / "x")]) == 2
    assert "give what --trace-file wrote" in capsys.readouterr().err
