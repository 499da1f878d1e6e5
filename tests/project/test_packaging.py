"""What is in the wheel, as pyproject.toml has it; tests/project/test_native_build.py builds one."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import find_namespace_packages

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TRAINING = "distkv.demo.train"


def packaged() -> set[str]:
    return set(find_namespace_packages(str(ROOT), **PROJECT["tool"]["setuptools"]["packages"]["find"]))


def test_all_packages_but_training_are_in_the_wheel() -> None:
    present = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "distkv").rglob("__init__.py")}
    assert TRAINING in present
    assert present - packaged() == {TRAINING}


def test_what_is_in_the_wheel_needs_no_training() -> None:
    folder = ROOT / TRAINING.replace(".", "/")
    users = [
        path
        for path in (ROOT / "distkv").rglob("*.py")
        if TRAINING in path.read_text(encoding="utf-8") and folder not in path.parents
    ]
    assert users == []
