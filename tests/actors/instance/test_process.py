"""The instance process: what ends it while its worker loads."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from distkv.actors.instance import process
from distkv.actors.instance.process import run
from distkv.config import InstanceConfig, build
from tests.waiting import soon, until


def config_of_one_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> InstanceConfig:
    """Of an instance whose worker never becomes ready."""
    program = tmp_path / "worker"
    program.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    given = {"model": str(tmp_path), "instance_id": "a", "port": 0, "gmanager": ["tcp://127.0.0.1:1"], **settings}
    return build(InstanceConfig, given)


async def test_an_error_of_a_callback_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not half alive, with a state that nobody knows."""
    config = config_of_one_that_loads(tmp_path, monkeypatch)
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise ValueError("this one")

    running = asyncio.ensure_future(run(config, lambda _facts: None, asyncio.Event()))
    await until(lambda: running.done() or loop.get_exception_handler() is not None)
    loop.call_soon(fail)
    with pytest.raises(ValueError, match="this one"):
        await soon(running)


@pytest.mark.parametrize("far", [["tcp://10.0.0.2:7070"], []], ids=["another machine", "its own"])
async def test_who_listens_where_the_machine_of_its_gmanager_cannot_reach_it_is_told(
    far: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default host is loopback, and whoever forgets --host on a second machine has an instance that joins."""
    gmanagers = ["tcp://127.0.0.1:1", "tcp://10.0.0.2:7070"]
    config = config_of_one_that_loads(tmp_path, monkeypatch, gmanager=gmanagers, data_host="10.0.0.1", insecure=True)
    asked: list[str] = []

    def is_elsewhere(address: str) -> bool:
        asked.append(address)
        return address in far

    monkeypatch.setattr(process, "is_elsewhere", is_elsewhere)
    stop = asyncio.Event()
    with capture_logs() as lines:
        running = asyncio.ensure_future(run(config, lambda _facts: None, stop))
        await until(lambda: len(asked) == len(gmanagers) or running.done())
        stop.set()
        assert await soon(running) == 0
    said = [line for line in lines if line["event"] == "other machines cannot reach this instance"]
    assert [(line["hosts"], line["gmanagers"]) for line in said] == ([(["127.0.0.1"], far)] if far else [])
