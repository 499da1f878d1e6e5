"""Which backend computes: the best, the one asked for, or torch where there is nothing better."""

from __future__ import annotations

import dataclasses
import shutil
from ctypes import c_int
from pathlib import Path
from typing import get_args

import pytest

from distkv.errors import ConfigError
from distkv.kernels.cpu import dispatch
from distkv.kernels.cpu.calls import functions, library
from distkv.kernels.cpu.calls.library import LEVELS, Library, installed
from distkv.kernels.cpu.dispatch import TORCH, available, choose
from distkv.types import CpuKernels

HERE = installed()
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))
built = pytest.mark.skipif(not HERE.levels, reason="; ".join(set(HERE.missing.values())))


@pytest.mark.skipif(not COMPILER, reason="no C++ compiler")
def test_with_a_compiler_every_level_that_this_machine_can_run_is_built() -> None:
    assert HERE.machine >= {"portable"}
    assert {level: why for level, why in HERE.missing.items() if level in HERE.machine} == {}


def test_every_level_can_be_asked_for() -> None:
    assert set(get_args(CpuKernels)) == {"auto", TORCH, *LEVELS}
    assert available()[-1] == TORCH


@built
@pytest.mark.parametrize("level", available()[:-1])
def test_all_functions_of_a_level_are_bound(level: CpuKernels) -> None:
    choice = choose(level)
    assert choice.native is not None and choice.why == "asked for"
    assert choice.level == choice.native.level == level
    assert choice.native.abi() == library.ABI
    for name, (_, arguments) in (functions.SHARED | functions.OF_LEVEL).items():
        assert tuple(getattr(choice.native, name).argtypes) == arguments
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = choice.native.nonesuch


@built
def test_auto_is_the_best_that_is_here() -> None:
    choice = choose()
    assert choice.level == available()[0] and choice.native is HERE.levels[choice.level]
    assert choice.why == "the best that this CPU can run"
    weak = dataclasses.replace(HERE, machine=frozenset({"portable"}))
    assert choose("auto", weak).level == "portable" and available(weak) == ("portable", TORCH)


def test_a_level_that_the_next_one_beats_comes_behind_it() -> None:
    machine = frozenset({"avx512bf16", "avx512", "avx2", "portable"})
    levels = dict.fromkeys(LEVELS, next(iter(HERE.levels.values()), None))
    slow = Library(levels, machine, {}, frozenset({"avx512bf16"}))  # type: ignore[arg-type]
    assert available(slow) == ("avx512", "avx512bf16", "avx2", "portable", TORCH)
    assert choose("auto", slow).level == "avx512" and choose("avx512bf16", slow).level == "avx512bf16"
    assert choose("auto", slow).why == "the best that this CPU can run"
    without = dataclasses.replace(slow, missing={"avx512": "the compiler is too old"})
    assert available(without) == ("avx512bf16", "avx2", "portable", TORCH)
    assert choose("auto", without).why.endswith("; avx512 is not here: the compiler is too old")
    assert available(dataclasses.replace(slow, slow=frozenset()))[0] == "avx512bf16"
    tiles = dataclasses.replace(slow, machine=machine | {"amx"}, missing={"amx": "the compiler is too old"})
    assert choose("auto", tiles).why == "the best that this CPU can run; amx is not here: the compiler is too old"


@built
def test_a_level_that_the_cpu_lacks_is_refused_with_those_it_has() -> None:
    weak = dataclasses.replace(HERE, machine=frozenset({"portable"}))
    with pytest.raises(ConfigError, match=r"cpu_kernels: avx2 .* this CPU, .* cannot run it \(here: portable, torch\)"):
        choose("avx2", weak)


def test_torch_can_be_asked_for() -> None:
    assert choose("torch") == dispatch.Choice(TORCH, None, "asked for")


def test_without_a_library_auto_is_torch_and_says_why(tmp_path: Path) -> None:
    missing = Library.load(tmp_path / "_native.so")
    choice = choose("auto", missing)
    assert choice.level == TORCH and choice.native is None
    assert choice.why.startswith("no native level is here: the native library was not built (install distkv again")
    with pytest.raises(ConfigError, match=r"avx2 is not here: the native library was not built .* \(here: torch\)"):
        choose("avx2", missing)
    (tmp_path / "_native.txt").write_text("all: no C++ compiler was found\n", encoding="utf-8")
    assert choose("auto", Library.load(tmp_path / "_native.so")).why.endswith("here: no C++ compiler was found")


def test_a_file_that_is_no_library_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "_native.so").write_bytes(b"\x7fELF, but not really")
    choice = choose("auto", Library.load(tmp_path / "_native.so"))
    assert choice.level == TORCH and "cannot be loaded" in choice.why


@built
def test_a_level_that_the_build_left_out_is_named(tmp_path: Path) -> None:
    path = tmp_path / "_native.so"
    shutil.copyfile(library.PATH, path)
    best, *others = available()[:-1]
    path.with_suffix(".txt").write_text(f"{best}: the compiler is too old: 1.0\n", encoding="utf-8")
    partly = Library.load(path)
    assert partly.missing == {best: "the compiler is too old: 1.0"}
    choice = choose("auto", partly)
    assert choice.level == (others or [TORCH])[0]
    assert "the compiler is too old" in choice.why


@built
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(library, "ABI", library.ABI + 1)
        other = Library.load()
    assert set(other.missing) == set(LEVELS) and "is needed" in other.missing["portable"]
    monkeypatch.setitem(functions.OF_LEVEL, "nonesuch", (c_int, ()))
    assert "distkv_nonesuch_portable" in Library.load().missing["portable"]
    assert choose("auto", Library.load()).level == TORCH
