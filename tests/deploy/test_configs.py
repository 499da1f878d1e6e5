"""The files in configs/ are valid for every program, and every setting can be given in every way."""

from __future__ import annotations

import tomllib
from pathlib import Path

import click
import pytest

from distkv.cli.daemons import gateway, gmanager, instance
from distkv.cli.exit_codes import run
from distkv.config import SECTIONS, build, load_file, settings_of, values_of
from distkv.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.rglob("*.toml"))
COMMANDS = {"gmanager": gmanager.command, "instance": instance.command, "gateway": gateway.command}
SUFFIXED = [
    (section, one.name) for section, kind in SECTIONS.items() for one in settings_of(kind).values() if one.suffixed
]
ALL = [(section, name) for section, kind in SECTIONS.items() for name in settings_of(kind)]

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
each_section = pytest.mark.parametrize("section", SECTIONS)


def printed(command: click.Command, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[str, str]]:
    """Name → (value as TOML, origin) of what `--print-config` shows."""
    assert run(command, [*arguments, "--print-config"]) == 0
    out = capsys.readouterr().out
    tomllib.loads(out)
    lines = [line.partition("  # ") for line in out.splitlines() if not line.startswith("#")]
    return {line.partition(" = ")[0]: (line.partition(" = ")[2].strip(), origin) for line, _, origin in lines}


def test_there_are_files_for_one_host_for_two_gpus_and_for_two_nodes() -> None:
    names = [str(path.relative_to(CONFIGS)) for path in FILES]
    assert names == ["local.toml", "two-gpus.toml", "two-nodes/a.toml", "two-nodes/b.toml"]


@each_file
@each_section
def test_a_file_makes_a_valid_config(path: Path, section: str) -> None:
    values = load_file(path, section)
    given = {
        name: value for name, value in (("model", "m"), ("api_key", "k")) if name in settings_of(SECTIONS[section])
    }
    config = build(SECTIONS[section], values | given)
    assert values_of(config) | values == values_of(config)


@each_file
@each_section
def test_print_config_shows_what_came_from_the_file(path: Path, section: str, capsys) -> None:
    shown = printed(COMMANDS[section], capsys, "--config", str(path))
    from_file = {name for name, (_value, origin) in shown.items() if origin == f"file {path}"}
    assert from_file == set(load_file(path, section))
    assert {origin for name, (_value, origin) in shown.items() if name not in from_file} <= {"default"}


@each_section
def test_environment_beats_file_and_a_flag_beats_both(section: str, tmp_path: Path, capsys, monkeypatch) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'log_level = "error"\n[{section}]\nport = 1\nhost = "localhost"\n')
    monkeypatch.setenv("DISTKV_PORT", "2")
    monkeypatch.setenv("DISTKV_HOST", "::1")
    shown = printed(COMMANDS[section], capsys, "--config", str(path), "--port", "3")
    assert shown["port"] == ("3", "command line (--port)")
    assert shown["host"] == ('"::1"', "environment (DISTKV_HOST)")
    assert shown["log_level"] == ('"error"', f"file {path}")
    assert shown["insecure"] == ("false", "default")


@pytest.mark.parametrize(("section", "name"), SUFFIXED)
def test_sizes_take_suffixes_everywhere(section: str, name: str, tmp_path: Path, capsys, monkeypatch) -> None:
    command, setting = COMMANDS[section], settings_of(SECTIONS[section])[name]
    path = tmp_path / "c.toml"
    path.write_text(f'[{section}]\n{name} = "32K"\n')
    assert printed(command, capsys, "--config", str(path))[name][0] == "32768"
    monkeypatch.setenv(setting.envvar, "4G")
    assert printed(command, capsys, "--config", str(path))[name][0] == str(4 * 2**30)
    assert printed(command, capsys, "--config", str(path), setting.flag, "32k")[name][0] == "32000"


def test_every_size_and_length_takes_suffixes() -> None:
    sizes = {pair for pair in ALL if pair[1].endswith(("_bytes", "_tokens", "_len"))}
    assert sizes == set(SUFFIXED)


@pytest.mark.parametrize(("section", "name"), ALL)
def test_an_unknown_key_names_the_nearest(section: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[{section}]\n{name}s_ = 1\n")
    with pytest.raises(ConfigError, match=rf"{name}s_: unknown setting in .*\(did you mean {name}\?\)"):
        load_file(path, section)
