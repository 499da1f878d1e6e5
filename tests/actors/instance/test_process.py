"""The instance process: what ends it while its worker loads."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from distkv.actors.instance.process import run
from distkv.config import InstanceConfig, build
from tests.waiting import soon, until


async def test_an_error_of_a_callback_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not half alive, with a state that nobody knows."""
    program = tmp_path / "worker"
    program.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    config = build(
        InstanceConfig, {"model": str(tmp_path), "instance_id": "a", "port": 0, "gmanager": ["tcp://127.0.0.1:1"]}
    )
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise ValueError("this one")

    running = asyncio.ensure_future(run(config, lambda _facts: None, asyncio.Event()))
    await until(lambda: running.done() or loop.get_exception_handler() is not None)
    loop.call_soon(fail)
    with pytest.raises(ValueError, match="this one"):
        await soon(running)
