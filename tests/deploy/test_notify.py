"""Type=notify as systemd sees it: a real NOTIFY_SOCKET, and the real daemons."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.deploy.conftest import Start, listening, log_of, told


def events(log: Path) -> list[str]:
    return [json.loads(line)["event"] for line in log.read_text().splitlines()]


def test_ready_comes_after_load_and_stopping_with_the_signal(start: Start, checkpoint: Path, tmp_path: Path) -> None:
    abstract = f"distkv-test-{os.getpid()}"
    with listening("\0" + abstract) as for_gmanager, listening(str(tmp_path / "notify")) as for_instance:
        gmanager = start("gmanager", {"NOTIFY_SOCKET": f"@{abstract}"}, port=0)
        ready = told(for_gmanager)
        address = ready["STATUS"].removeprefix("ready at ")
        assert ready == {"READY": "1", "MAINPID": str(gmanager.pid), "STATUS": f"ready at {address}"}

        instance = start(
            "instance", {"NOTIFY_SOCKET": str(tmp_path / "notify")}, model=str(checkpoint), gmanager=address
        )
        ready = told(for_instance)
        assert (ready["READY"], ready["MAINPID"]) == ("1", str(instance.pid))
        seen = events(log_of(tmp_path, "instance"))
        assert seen.index("loaded") < seen.index("ready"), "the model is loaded when READY comes"
        assert "joined" in events(log_of(tmp_path, "gmanager"))

        (worker,) = psutil.Process(instance.pid).children()
        assert "NOTIFY_SOCKET" not in worker.environ(), "the worker must not speak for its instance"

        for process, sock in ((instance, for_instance), (gmanager, for_gmanager)):
            process.send_signal(signal.SIGTERM)
            stopping = told(sock)
            assert stopping["STOPPING"] == "1" and "READY" not in stopping
            assert process.wait(30) == 0
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)


def test_an_instance_that_cannot_load_never_says_ready(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    with listening(str(tmp_path / "notify")) as sock:
        instance = start("instance", {"NOTIFY_SOCKET": str(tmp_path / "notify")}, model=str(tmp_path / "broken"))
        assert instance.wait(60) == 1
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
    assert events(log_of(tmp_path, "instance"))[-1] == "fatal"


def test_a_service_manager_that_is_gone_stops_nobody(start: Start, tmp_path: Path) -> None:
    gmanager = start("gmanager", {"NOTIFY_SOCKET": str(tmp_path / "nobody")}, port=0)
    log = log_of(tmp_path, "gmanager")
    while "the service manager cannot be told" not in log.read_text():
        assert gmanager.poll() is None
    gmanager.terminate()
    assert gmanager.wait(30) == 0
