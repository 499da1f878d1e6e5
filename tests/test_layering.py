"""Imports point one way: cli, gateway, client, bench, demo → actors → engine, control, text, wire → leaves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import distkv

ROOT = Path(distkv.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

LEAVES = {"errors", "types", "config", "clock", "log", "events"}
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
    "bench": ACTORS_AND_BELOW | {"client", "demo", "bench"},
    "demo": ACTORS_AND_BELOW | {"client", "demo"},
    "gateway": LOW | {"wire", "text", "client", "gateway"},
    "cli": ACTORS_AND_BELOW | {"client", "gateway", "bench", "demo", "cli"},
    # The package itself only names what users import.
    "": {"client", "errors", "types"},
}
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
}
ANYWHERE_FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def package_of(name: str) -> str:
    """The layer of "wire.messages.data" is "wire.messages", of "engine.step" it is "engine", of entry points "cli"."""
    if name.endswith(".__main__"):
        return "cli"
    return "wire.messages" if name.startswith("wire.messages") else name.partition(".")[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, those under TYPE_CHECKING and inside functions included."""
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


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    package = package_of(name_of(path))
    assert package in ALLOWED, f"{path} belongs to no package that the design knows"
    wrong = []
    for line, imported in imports_of(path):
        top, _, rest = imported.partition(".")
        if top == "distkv":
            layer = package_of(rest)
            if layer not in ALLOWED[package] and not (
                layer == "" and package in {"client", "gateway", "cli", "bench", "demo"}
            ):
                wrong.append(f"line {line}: {package or 'distkv'} may not import distkv.{rest}")
        elif top in FORBIDDEN.get(package, set()) | ANYWHERE_FORBIDDEN:
            wrong.append(f"line {line}: {package} may not import {top}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_stay_readable(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{lines} lines: two things live here (300 is full)"


def test_the_parser_sees_all_kinds_of_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "distkv"
    (package / "control").mkdir(parents=True)
    (package / "wire").mkdir()
    (package / "wire" / "channel.py").touch()
    source = package / "control" / "bad.py"
    source.write_text("import zmq.asyncio\ndef f():\n    from ..wire import channel\n    from . import ledger\n")
    monkeypatch.setattr("tests.test_layering.ROOT", package)
    found = list(imports_of(source))
    assert found == [(1, "zmq.asyncio"), (3, "distkv.wire.channel"), (4, "distkv.control")]
