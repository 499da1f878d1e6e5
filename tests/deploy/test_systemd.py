"""The units are ones that systemd accepts, and what they say fits the programs."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from distkv.cli.daemons import daemon, gateway, gmanager, instance
from distkv.config import GatewayConfig, InstanceConfig, build, settings_of

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "configs" / "systemd").glob("*.service"))
INSTANCE = ROOT / "configs" / "systemd" / "distkv-instance@.service"
SETTINGS = {"gmanager": gmanager.GManagerConfig, "instance": InstanceConfig, "gateway": GatewayConfig}
MAX_EXPOSURE = 20  # of 100, as systemd-analyze counts; below is its "OK"


def unit(path: Path) -> configparser.RawConfigParser:
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[method-assign,assignment]
    parsed.read_string(path.read_text(encoding="utf-8"))
    return parsed


def seconds(text: str) -> float:
    number, word = re.fullmatch(r"(\d+)(min)?", text).groups()  # type: ignore[union-attr]
    return int(number) * (60 if word else 1)


def drain_of(name: str) -> float:
    """The longest time from SIGTERM to the end of a daemon with default settings."""
    if name == "gmanager":
        return gmanager.DRAIN_S + daemon.CANCEL_S
    if name == "instance":
        config = build(InstanceConfig, {"model": "m"})
        return config.shutdown_timeout_s + instance.DRAIN_GRACE_S + daemon.CANCEL_S
    front = build(GatewayConfig, {"model": "m"})
    return front.drain_wait_s + front.shutdown_timeout_s + gateway.DRAIN_GRACE_S + daemon.CANCEL_S


@pytest.fixture
def analyze(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs systemd-analyze on a copy of the units that finds the programs of this checkout."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/distkv/bin/", f"{ROOT}/bin/"))

    def run(*arguments: str, name: str) -> subprocess.CompletedProcess[str]:
        command = [program, *arguments, str(tmp_path / name)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_it(analyze, path: Path) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", name=path.name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_it_is_hardened(analyze, path: Path) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", "--no-pager", name=path.name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_it_does_what_its_program_needs(path: Path) -> None:
    service = unit(path)["Service"]
    name = path.name.removeprefix("distkv-").removesuffix(".service").removesuffix("@")
    assert service["ExecStart"].endswith(f"/distkv-{name}")
    assert (ROOT / "bin" / f"distkv-{name}").exists()
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert seconds(service["TimeoutStopSec"]) > drain_of(name)
    known = {"DISTKV_CONFIG", *(setting.envvar for setting in settings_of(SETTINGS[name]).values())}
    assert {one.partition("=")[0] for one in service["Environment"].split()} <= known


def test_there_is_a_unit_for_each_daemon() -> None:
    assert [path.name for path in UNITS] == [
        "distkv-gateway.service", "distkv-gmanager.service", "distkv-instance@.service",
    ]  # fmt: skip


def test_instances_of_a_host_can_map_each_others_pools() -> None:
    service = unit(INSTANCE)["Service"]
    assert service["User"] and "%" not in service["User"], "all instances are the same user"
    assert service["CapabilityBoundingSet"] == ""
    assert service["LimitMEMLOCK"] == "infinity"
    for name in ("PrivateUsers", "PrivatePIDs", "PrivateNetwork", "ProcSubset"):
        assert name not in service
