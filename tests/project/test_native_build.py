"""The native kernels are built where a compiler is, and an installation succeeds where none is."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from sysconfig import get_platform

import pytest

from distkv.kernels.cpu.calls.library import LEVELS

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path("distkv/kernels/cpu/native")
LIBRARY = Path("distkv/kernels/cpu/_native.so")
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
EDITABLE = "from setuptools import build_meta; build_meta.build_editable('wheels', {'editable_mode': 'compat'})"
WHEEL = "from setuptools import build_meta; build_meta.build_wheel('wheels')"
OFFLINE = ("--no-build-isolation", "--no-deps", "--no-index")

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="only portable code is built here")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkout with nothing but the build, and sources that compile in no time."""
    tree = tmp_path / "tree"
    (tree / NATIVE).mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", tree)
    for name in ("abi.h", "machine.cpp", *(f"{level}.cpp" for level in LEVELS)):
        shutil.copy(ROOT / NATIVE / name, tree / NATIVE)
    (tree / NATIVE / "kernels.h").write_text('#include "abi.h"\n', encoding="utf-8")
    return tree


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A checkout of what is installed, with the objects of the last build in place: only what is older than its sources
    is compiled again."""
    tree = tmp_path / "tree"
    unbuilt = shutil.ignore_patterns("__pycache__", "_native.*")
    shutil.copytree(ROOT / "distkv", tree / "distkv", ignore=unbuilt)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for built in ROOT.glob("build/temp.*"):
        shutil.copytree(built, tree / "build" / built.name)
    return tree


def python(tree: Path, *arguments: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("CXX", "CXXFLAGS", "LDFLAGS")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=clean | environment, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


def in_place(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(tree, "setup.py", "build_ext", "--inplace", **environment)


def notes(tree: Path) -> str:
    return (tree / LIBRARY).with_suffix(".txt").read_text(encoding="utf-8")


def compiler_script(path: Path, body: str) -> str:
    path.write_text(f'#!/bin/bash\n{body}\nexec c++ "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("compiler", ["/bin/false", "no-such-compiler"])
def test_without_a_compiler_there_is_no_library_and_a_reason(small: Path, compiler: str) -> None:
    (small / LIBRARY).touch()  # of an earlier build
    done = in_place(small, CXX=compiler)
    assert done.returncode == 0, done.stderr
    assert f"native CPU kernels: all left out: {compiler} does not work" in done.stderr
    assert not (small / LIBRARY).exists() and notes(small).startswith(f"all: {compiler} does not work")


@needs_compiler
def test_only_what_changed_is_compiled(small: Path) -> None:
    done = in_place(small)
    assert done.returncode == 0 and done.stdout.count(" -c ") >= 2, done.stderr
    assert (small / LIBRARY).exists()
    assert " -c " not in in_place(small).stdout
    os.utime(small / NATIVE / "portable.cpp")
    assert in_place(small).stdout.count(" -c ") == 1
    os.utime(small / NATIVE / "abi.h")
    assert in_place(small, CXXFLAGS="-DONE").stdout.count(" -c ") == done.stdout.count(" -c ")


@needs_compiler
def test_what_an_editable_installation_compiled_is_not_compiled_again(small: Path) -> None:
    (small / "wheels").mkdir()
    done = python(small, "-c", EDITABLE)
    assert done.returncode == 0 and done.stdout.count(" -c ") >= 2, done.stderr
    assert (small / LIBRARY).exists()
    done = python(small, "setup.py", "build_ext", "--build-lib", "out")
    assert " -c " not in done.stdout and (small / "out" / LIBRARY).exists(), done.stdout


def test_what_the_version_before_left_is_not_in_a_wheel(small: Path) -> None:
    (small / "wheels").mkdir()
    folder = small / f"build/lib.{get_platform()}-{sys.implementation.cache_tag}"
    (folder / "distkv/gone").mkdir(parents=True)
    (folder / "distkv/gone/__init__.py").touch()
    done = python(small, "-c", WHEEL, CXX="/bin/false")
    assert done.returncode == 0, done.stderr
    (wheel,) = (small / "wheels").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert str(LIBRARY.with_suffix(".txt")) in names and "distkv/gone/__init__.py" not in names


@pytest.mark.parametrize("before", ["sdist", "build"])
def test_a_wheel_is_whole_behind_another_command(small: Path, before: str) -> None:
    (small / "distkv/__init__.py").touch()
    (small / "setup.cfg").write_text("[options]\npackages = distkv\n", encoding="utf-8")
    done = python(small, "setup.py", before, "bdist_wheel", CXX="/bin/false")
    assert done.returncode == 0, done.stderr
    (wheel,) = (small / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert str(LIBRARY.with_suffix(".txt")) in names and "distkv/__init__.py" in names


@needs_compiler
@needs_x86
def test_a_level_that_the_compiler_does_not_know_is_left_out(small: Path, tmp_path: Path) -> None:
    old = compiler_script(tmp_path / "old", '[[ "$*" != *-mamx-bf16* ]] || { echo "unknown -mamx-bf16" >&2; exit 1; }')
    done = in_place(small, CXX=old)
    assert done.returncode == 0 and (small / LIBRARY).exists(), done.stderr
    assert notes(small) == "amx: unknown -mamx-bf16\n"


@needs_compiler
def test_a_wrong_source_is_an_error_in_place_and_none_for_an_installation(small: Path) -> None:
    with (small / NATIVE / "machine.cpp").open("a", encoding="utf-8") as source:
        source.write("int wrong = ;\n")
    done = in_place(small)
    assert done.returncode != 0 and "could not compile machine.cpp" in done.stderr and "expected" in done.stderr
    done = python(small, "setup.py", "build_ext", "--build-lib", "out")
    assert done.returncode == 0, done.stderr
    assert not (small / "out" / LIBRARY).exists()
    assert "could not compile machine.cpp" in notes(small / "out")


@pytest.mark.slow
def test_pip_installs_without_a_compiler(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    done = python(whole, *PIP, "install", ".", *OFFLINE, "--target", str(target), CXX="/bin/false")
    assert done.returncode == 0, done.stderr
    code = "from distkv.kernels.cpu.dispatch import choose; print(choose())"
    said = python(tmp_path, "-c", code, PYTHONPATH=str(target))
    assert "level='torch'" in said.stdout and "/bin/false does not work" in said.stdout, said.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_compiler
def test_a_wheel_holds_the_library_for_every_python(whole: Path, tmp_path: Path) -> None:
    done = python(whole, *PIP, "wheel", ".", *OFFLINE, "--wheel-dir", str(tmp_path), timeout_s=800)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert str(LIBRARY) in names and not [name for name in names if name == "setup.py" or name.endswith((".cpp", ".h"))]
    assert "distkv/demo/corpus/facts.py" in names and not [name for name in names if "demo/train" in name]
    code = "from distkv.kernels.cpu.calls.library import installed as i; print(*i().levels, i().missing)"
    said = python(tmp_path, "-c", code, PYTHONPATH=str(tmp_path / "installed"))
    assert "portable" in said.stdout and str(tmp_path) not in said.stderr, said.stderr
    # A template that two objects have is linked from the first: no copy may need more than its user has.
    shared = {level: weak_symbols(next(whole.glob(f"build/temp*/{level}.o"))) for level in LEVELS[::-1]}
    assert set().union(*shared.values()) <= shared["portable"]


@pytest.mark.slow
def test_an_sdist_holds_the_sources(whole: Path) -> None:
    done = python(whole, "setup.py", "--quiet", "sdist", "--formats", "zip")
    assert done.returncode == 0, done.stderr
    (sdist,) = (whole / "dist").glob("*.zip")
    names = {"/".join(name.split("/")[1:]) for name in zipfile.ZipFile(sdist).namelist()}
    assert names >= {"setup.py", *(str(NATIVE / path.name) for path in (ROOT / NATIVE).iterdir())}


def weak_symbols(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout
    return {symbol for _, kind, symbol in map(str.split, listed.splitlines()) if kind in "WVu"}
