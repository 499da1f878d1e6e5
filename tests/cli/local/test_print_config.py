"""`distkv up --print-config`: everything that would be started, as a file that gives the same again."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from distkv.cli.commands.up import command
from distkv.cli.exit_codes import run
from distkv.cli.local.wanted import Wanted
from distkv.client.local import gpus, launch
from distkv.client.local.cluster_settings import ClusterSettings
from distkv.config import SECTIONS, TABLES, load_file, settings_of

CONFIG = """
lease_s = 3.0
host = "10.0.0.1"
kv_tokens = 640

[up]
instances = 3
restart = 2

[gmanager]
dead_after_s = 9.0

[instance]
request_timeout_s = 7.0
kv_tokens = "1K"

[gateway]
gmanager = "tcp://10.0.0.1:7070"
served_model_name = ["a", "b"]
port = 8123
"""


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `distkv up --print-config` with more arguments; the printed text."""

    def show(*arguments: str) -> str:
        assert run(command, [*arguments, "--print-config"]) == 0
        return capsys.readouterr().out

    return show


def origins(text: str) -> dict[str, str]:
    """Setting → where it came from, of the last table that has it."""
    lines = (line.partition("  # ") for line in text.splitlines() if " = " in line)
    return {line.split(" = ")[0]: origin for line, _, origin in lines}


def test_every_program_has_a_table_with_all_its_settings(shown):
    tables = tomllib.loads(shown("demo", "--instances", "2", "--threads", "1"))
    assert list(tables) == ["up", *SECTIONS]
    for table, values in tables.items():
        assert values.keys() <= settings_of(TABLES[table]).keys()
    assert (tables["instance"]["model"], tables["gateway"]["model"]) == ("demo", "demo")
    assert (tables["gmanager"]["port"], tables["gateway"]["port"], tables["gateway"]["drain_wait_s"]) == (7070, 8000, 0)
    assert not tables["instance"].keys() & {"instance_id", "port", "host", "gmanager", "kv_tokens"}
    assert tomllib.loads(shown("--no-gateway")).keys() == {"up", "gmanager", "instance"}


def test_a_flag_wins_over_the_environment_over_the_file(shown, tmp_path, monkeypatch):
    file = tmp_path / "c.toml"
    file.write_text(CONFIG)
    monkeypatch.setenv("DISTKV_INSTANCES", "4")
    monkeypatch.setenv("DISTKV_LEASE_S", "5")
    text = shown("--config", str(file), "--lease-s", "6", "--host", "127.0.0.2", "--http-port", "0")
    tables, origin = tomllib.loads(text), origins(text)
    assert (tables["up"]["instances"], origin["instances"]) == (4, "environment (DISTKV_INSTANCES)")
    assert (tables["instance"]["lease_s"], origin["lease_s"]) == (6.0, "command line (--lease-s)")
    assert (tables["up"]["restart"], origin["restart"]) == (2, f"file {file}")
    # Of two pools in a file the instances' own is wanted, of two hosts that of the table.
    assert (tables["up"]["kv_tokens"], origin["kv_tokens"]) == ([1024], f"file {file}")
    assert (tables["gmanager"]["host"], tables["gateway"]["host"]) == ("127.0.0.1", "127.0.0.2")
    assert (tables["gateway"]["port"], tables["gateway"]["served_model_name"]) == (0, ["a", "b"])
    # What one table says is not for the others.
    assert (tables["instance"]["request_timeout_s"], tables["gateway"]["request_timeout_s"]) == (7.0, 600.0)


def test_how_long_http_may_take_is_a_flag_of_its_own(shown):
    """An instance's setting of that name is how long a request may wait for memory that is gone."""
    tables = tomllib.loads(shown("--request-timeout-s", "5"))
    assert (tables["instance"]["request_timeout_s"], tables["gateway"]["request_timeout_s"]) == (5.0, 600.0)
    tables = tomllib.loads(shown("--http-request-timeout-s", "7"))
    assert (tables["instance"]["request_timeout_s"], tables["gateway"]["request_timeout_s"]) == (60.0, 7.0)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--kv-tokens", "256,512,1K", "--instances", "3", "--cpu-affinity", "0-5", "--log-dir", "logs"],
        [
            "--host",
            "::1",
            "--chat-template",
            "t.jinja",
            "--ssl-certfile",
            "c",
            "--ssl-keyfile",
            "k",
            "--start-timeout",
            "3",
        ],
        ["--no-gateway", "--log-json", "--max-model-len", "32K", "--shutdown-timeout", "2"],
    ],
)
def test_it_is_a_file_that_gives_the_same(shown, tmp_path, arguments):
    first = shown("demo", *arguments)
    file = tmp_path / "again.toml"
    file.write_text(first)
    again = shown("--config", str(file))
    assert tomllib.loads(again) == tomllib.loads(first)
    assert shown("--config", str(file), "--threads", "1") != first
    for section in SECTIONS:
        load_file(file, section)


def test_a_file_may_be_a_pipe(shown):
    """It was read several times, and is empty from the second time on."""
    reading, writing = os.pipe()
    os.write(writing, CONFIG.encode())
    os.close(writing)
    try:
        tables = tomllib.loads(shown("--config", f"/dev/fd/{reading}"))
    finally:
        os.close(reading)
    assert (tables["up"]["instances"], tables["up"]["kv_tokens"], tables["instance"]["lease_s"]) == (3, [1024], 3.0)
    assert (tables["gmanager"]["dead_after_s"], tables["gateway"]["port"]) == (9.0, 8123)


def test_what_depends_on_how_many_instances_there_are_is_chosen_again(shown, tmp_path, monkeypatch):
    """All instances got the first one's GPU, and the gateway waited for as many as there had been."""
    monkeypatch.setattr(gpus, "count_gpus", lambda: 2)
    monkeypatch.setattr(launch, "share_of_cpus", lambda instances: 12 // instances)
    arguments = ["--instances", "2", "--kv-tokens", "1K"]
    text = shown(*arguments)
    assert all(f"# {name} is not set" in text for name in ("device", "threads", "wait_for"))
    assert tomllib.loads(shown(*arguments, "--device", "cuda:1", "--threads", "5"))["instance"]["threads"] == 5
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with command.make_context("up", ["--config", str(file), "--instances", "3"]) as ctx:
        settings = ClusterSettings.of(**Wanted.of(ctx, ctx.params).arguments())
    assert [one["device"] for one in settings.instances] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [one["threads"] for one in settings.instances] == [4, 4, 4] and settings.gateway["wait_for"] == 3


def test_keys_are_masked_and_have_to_be_given_again(shown, tmp_path, capsys, monkeypatch):
    text = shown("--host", "0.0.0.0", "--api-key", "sesame")
    assert "sesame" not in text
    file = tmp_path / "masked.toml"
    file.write_text(text)
    assert run(command, ["--config", str(file)]) == 2
    assert "give them in DISTKV_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("DISTKV_API_KEY", "sesame")
    assert shown("--config", str(file)).replace("environment (DISTKV_API_KEY)", "") != text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[up]\ninstance = 3\n", "instance: unknown setting in .* \\[up\\] .*did you mean instances?"),
        ("[up]\nlease_s = 3\n", "it belongs to distkv-instance: put it under .instance."),
        ("[gateway]\nlog_dir = 'x'\n", "it belongs to distkv up: put it under .up."),
        ("[up]\nkv_tokens = [0]\n", "expected whole numbers such as 4096 or 1K,2K, got .0."),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, content: str, told: str, capsys):
    file = tmp_path / "c.toml"
    file.write_text(content)
    assert run(command, ["--config", str(file), "--print-config"]) == 2
    assert re.search(told, capsys.readouterr().err)
