"""Imports point one way: cli, offline, gateway, client, bench, demo → actors → engine, control, text, wire → leaves.

bench and cli use sim too, which is made of control.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import distkv

ROOT = Path(distkv.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

LEAVES = {
    "errors",
    "types",
    "config",
    "control_groups",
    "endings",
    "clock",
    "log",
    "events",
    "git_lfs",
    "structured_output",
    "process_priority",
    "places",
    "recent_peak",
    "threads",
    "token_ids",
    "checksums",
    "packed_numbers",
    "wording",
}
LOW = LEAVES | {"wire.messages"}
ACTORS_AND_BELOW = LOW | {"wire", "control", "kernels", "engine", "text", "actors"}
ALLOWED = {
    **{leaf: LEAVES for leaf in LEAVES},
    "wire.messages": LOW,
    "wire": LOW | {"wire"},
    "control": LOW | {"control"},
    "kernels": LEAVES | {"kernels"},
    "text": LEAVES | {"text"},
    "engine": LOW | {"kernels", "engine"},
    "actors": ACTORS_AND_BELOW,
    "sim": LOW | {"control", "sim"},
    "client": LOW | {"wire", "client"},
    "bench": ACTORS_AND_BELOW | {"client", "demo", "sim", "bench"},
    "demo": ACTORS_AND_BELOW | {"client", "demo"},
    "gateway": LOW | {"wire", "text", "client", "gateway"},
    # It reads prompts as the gateway does.
    "offline": LOW | {"text", "client", "gateway", "offline"},
    "cli": ACTORS_AND_BELOW | {"client", "gateway", "bench", "demo", "sim", "cli"},
    # The package itself only names what users import.
    "": {"client", "offline", "errors", "structured_output", "types"},
}
ROOMS: dict[str, dict[str, set[str]]] = {
    "actors": {"gmanager": set(), "worker": set(), "instance": {"worker"}},
    "cli": {
        "live": set(),
        "daemons": set(),
        "local": {"live"},
        "commands": {"live", "local", "simulated"},
        "simulated": set(),
    },
    "client": {"local": set(), "instances": set(), "views": {"instances"}},
    # One state machine in several rooms, which share its state; the gManager's stands apart.
    "control": {
        "request": {"loan", "schedule", "rmanager"},
        "loan": {"request", "rmanager", "serving", "performance"},
        "schedule": {"request", "loan", "rmanager", "performance"},
        "rmanager": {"request", "loan", "schedule", "plan", "serving", "performance"},
        "serving": {"loan", "rmanager"},
        "plan": {"request", "loan", "schedule", "rmanager", "performance"},
        "cluster": {"performance"},
        "performance": set(),
        "recording": {"rmanager"},
    },
    "demo": {"corpus": set(), "run": {"corpus"}, "train": {"corpus"}},
    "engine": {
        "device": {"model"},
        "model": {"device"},
        "attention": {"device", "model", "step"},
        "sampling": {"device", "model", "step"},
        "step": {"device", "model", "attention", "sampling"},
    },
    "gateway": {
        "schema": set(),
        "metrics": set(),
        "operations": {"schema", "metrics"},
        "connections": {"schema", "operations"},
        "generation": {"schema", "metrics", "operations"},
        "prompting": {"schema", "generation"},
        "api": {"schema", "metrics", "operations", "connections", "generation", "prompting"},
    },
    "kernels": {
        "attention": set(),
        "layer": {"attention"},
        "cpu": {"attention", "layer"},
        "triton": {"attention", "layer"},
    },
    "sim": {
        "machines": set(),
        "drawn": {"machines"},
        "timed": {"machines"},
        "profiles": set(),
        "datasets": set(),
        "baselines": {"profiles", "timed"},
        "papers": {"baselines", "datasets", "profiles", "timed"},
    },
    "wire": {"messages": set(), "links": {"messages"}, "sockets": set()},
}
"""Which rooms of its package a room may use, besides what stands in the package itself."""
IO = {"socket", "ssl", "select", "selectors", "zmq", "asyncio", "uvloop", "multiprocessing", "subprocess"}
PURE = IO | {"torch", "time", "datetime", "threading", "secrets", "os", "io", "pathlib"}
FORBIDDEN = {
    "control": PURE,
    "sim": PURE,
    "kernels": IO,
    "engine": IO - {"subprocess"},
    "wire": {"torch", "pickle"},
    "text": IO - {"subprocess"} | {"torch"},
    "client": {"torch"},
    "gateway": {"torch"},
    "offline": {"torch"},
}
ANYWHERE_FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def package_of(name: str) -> str:
    """The layer of "wire.messages.data" is "wire.messages", of "engine.step" it is "engine", of entry points "cli"."""
    if name.rpartition(".")[2] == "__main__":
        return "cli"
    return "wire.messages" if name.startswith("wire.messages") else name.partition(".")[0]


@cache
def imports_of(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, absolute dotted name) of every import, those under TYPE_CHECKING and inside functions included."""
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[int, str]]:
    here = ["distkv", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # "from distkv.wire import messages" names a module too.
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module


def is_module(dotted: str) -> bool:
    path = ROOT.parent.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


PACKAGES = sorted({package_of(name_of(path)) for path in MODULES})
each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package or "distkv")


def modules_of(package: str) -> list[Path]:
    return [path for path in MODULES if package_of(name_of(path)) == package]


@each_package
def test_imports_point_one_way(package: str) -> None:
    assert package in ALLOWED, f"distkv.{package} is no package that the design knows"
    wrong = []
    for path in modules_of(package):
        for line, imported in imports_of(path):
            top, _, rest = imported.partition(".")
            if top == "distkv":
                layer = package_of(rest)
                if layer not in ALLOWED[package] and not (
                    layer == "" and package in {"actors", "client", "gateway", "offline", "cli", "bench", "demo"}
                ):
                    wrong.append(f"{path}:{line}: {package or 'distkv'} may not import distkv.{rest}")
            elif top in FORBIDDEN.get(package, set()) | ANYWHERE_FORBIDDEN:
                wrong.append(f"{path}:{line}: {package} may not import {top}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_uses_only_rooms_that_it_may(package: str) -> None:
    rooms, wrong = ROOMS[package], []
    for path in (ROOT / package).glob("*/**/*.py"):
        room = path.relative_to(ROOT).parts[1]
        assert room in rooms, f"distkv.{package} has no room {room} that the design knows"
        for line, imported in imports_of(path):
            parts = imported.split(".")
            if parts[:2] == ["distkv", package] and parts[2:] and parts[2] in rooms.keys() - rooms[room] - {room}:
                wrong.append(f"{path}:{line}: {package}.{room} may not import {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_module_of_control_needs_itself() -> None:
    """Though its rooms use each other: what two modules need is in a third."""
    needs = {
        f"distkv.{name_of(path)}": {name for _, name in imports_of(path)}
        for path in MODULES
        if package_of(name_of(path)) == "control"
    }
    TopologicalSorter(needs).prepare()


def test_every_room_is_known() -> None:
    found = {package: {path.parent.name for path in (ROOT / package).glob("*/*.py")} - {"native"} for package in ROOMS}
    assert found == {package: set(rooms) for package, rooms in ROOMS.items()}


def test_files_stay_readable() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    full = {str(path): count for path, count in lines.items() if count > 400}
    assert not full, "two things live here (300 is full)"


def test_the_parser_sees_all_kinds_of_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "distkv"
    (package / "control").mkdir(parents=True)
    (package / "wire").mkdir()
    (package / "wire" / "channel.py").touch()
    source = package / "control" / "bad.py"
    source.write_text("import zmq.asyncio\ndef f():\n    from ..wire import channel\n    from . import ledger\n")
    monkeypatch.setattr("tests.project.test_layering.ROOT", package)
    assert imports_of(source) == ((1, "zmq.asyncio"), (3, "distkv.wire.channel"), (4, "distkv.control"))
