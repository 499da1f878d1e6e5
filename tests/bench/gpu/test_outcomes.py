"""A line for each test, whoever ran it and whatever came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
def test_well(): pass
def test_badly(): assert 1 == 2
def test_not(): pytest.skip("no reason")
@pytest.fixture
def broken(): raise OSError("gone")
def test_never(broken): pass
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_each_test_has_a_line(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    file = tmp_path / "outcomes.jsonl"
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "DISTKV_OUTCOMES": str(file)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    plugins = ["-p", "xdist.plugin", "-p", "distkv.bench.gpu.outcomes"]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", "-n", workers, "--rootdir", tmp_path, tmp_path]
    assert subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, cwd=Path.cwd()).returncode == 1
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = {line["test"].rpartition("::")[2]: (line["outcome"], line["detail"]) for line in lines}
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "test_well": "passed", "test_badly": "failed", "test_not": "skipped", "test_never": "failed"
    }  # fmt: skip
    assert len(lines) == 4 and "assert 1 == 2" in found["test_badly"][1] and "gone" in found["test_never"][1]


SORTS = """
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.nodeid)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_teaches_most_comes_first(tmp_path: Path, workers: str) -> None:
    """Whatever order the tests' own conftest.py gives them."""
    (tmp_path / "conftest.py").write_text(SORTS)
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    file = tmp_path / "outcomes.jsonl"
    first = "test_c.py::test_two,test_b"
    environment = {
        **os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "DISTKV_OUTCOMES": str(file), "DISTKV_FIRST": first
    }  # fmt: skip
    environment.pop("PYTEST_XDIST_WORKER", None)
    plugins = ["-p", "xdist.plugin", "-p", "distkv.bench.gpu.outcomes"]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", "-n", workers, "--rootdir", tmp_path, tmp_path]
    assert subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, cwd=Path.cwd()).returncode == 0
    names = [
        json.loads(line)["test"].replace("::test_", ".")[-len("c.py.two") :] for line in file.read_text().splitlines()
    ]
    assert names == ["c.py.two", "b.py.one", "b.py.two", "a.py.one", "a.py.two", "c.py.one", "d.py.one", "d.py.two"]
