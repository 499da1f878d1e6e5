"""`distkv-gateway` as a program: its exit codes, and what it does not show."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from distkv.cli.daemons.gateway import command
from distkv.client.local import launch
from distkv.client.local.child import Child, wait_ready
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.errors import ConfigError, StartupFailed
from tests.checkpoints import TEXT


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), vocab=320, text_for_tokenizer=TEXT)


def child(checkpoint: Path, log: Path, **settings: Any) -> Child:
    values = {"model": str(checkpoint), "port": 0, "drain_wait_s": 0.0, "log_json": True} | settings
    return Child("gateway", launch.command("gateway", values), log, launch.environment("gateway", values))


def test_a_gateway_without_a_cluster_lives_and_leaves(checkpoint: Path, tmp_path: Path) -> None:
    gateway = child(checkpoint, tmp_path / "log", api_key="sesame", gmanager="tcp://127.0.0.1:9")
    try:
        wait_ready([gateway], time.monotonic() + 60)
        url = gateway.report["address"]
        with httpx.Client(base_url=url, timeout=60) as http:
            assert [http.get(path).status_code for path in ("/live", "/health", "/v1/models")] == [200, 503, 401]
        os.kill(gateway.pid, signal.SIGTERM)
        gateway.process.wait(60)
        assert gateway.exit_code == 0
    finally:
        gateway.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[0]["event"] == "configured" and lines[-1]["event"] == "stopped"
    assert all(line["process"] == "gateway" for line in lines)
    assert "sesame" not in (tmp_path / "log").read_text()


def test_a_file_that_is_missing_ends_it_with_2(checkpoint: Path, tmp_path: Path) -> None:
    gateway = child(checkpoint, tmp_path / "log", chat_template=str(tmp_path / "none.jinja"))
    try:
        with pytest.raises(StartupFailed, match=r"code 2: chat_template: .*none\.jinja cannot be read: No such file"):
            wait_ready([gateway], time.monotonic() + 60)
    finally:
        gateway.close()


def test_keys_are_not_shown(checkpoint: Path) -> None:
    shown = CliRunner().invoke(command, ["--model", str(checkpoint), "--api-key", "sesame", "--print-config"])
    assert shown.exit_code == 0 and "sesame" not in shown.output and "api_key" in shown.output


def test_a_variable_for_keys_that_holds_none_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`DISTKV_API_KEY=$KEY` without a KEY served without keys."""
    for empty in ("", ",", " "):
        monkeypatch.setenv("DISTKV_API_KEY", empty)
        with pytest.raises(ConfigError, match="api_key: expected keys"):
            command.main(["--model", str(checkpoint)], standalone_mode=False)
