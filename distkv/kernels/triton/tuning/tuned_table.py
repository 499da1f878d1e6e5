"""Configs of decode and tiles of prefill that were measured, kept between runs.

A table is one JSON file per device and text of the kernels, in $XDG_CACHE_HOME/distkv/triton or, shipped with the
package, in the folder `tables` beside this. Only an explicit tuning run writes one (measure.py); backends read it at
their start.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
import triton

from distkv.kernels.triton.attention.prefill_tiles import Tiles
from distkv.kernels.triton.attention.templates import Config, Shape, heuristic, heuristics

T = TypeVar("T")

SHIPPED = Path(__file__).parent / "tables"
_KERNELS = Path(__file__).parents[1]
_SOURCES = (
    "casts.py",
    "merge.py",
    "metadata.py",
    "attention/decode.py",
    "attention/decode_plan.py",
    "attention/prefill.py",
    "attention/prefill_tiles.py",
    "attention/templates.py",
)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a config was measured for: the shape of a kernel, keys of the longest row, number of rows."""

    shape: str
    keys: int
    rows: int


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best config of a case and its time."""

    case: Case
    config: Config
    milliseconds: float


class MeasuredTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best tiles of prefill for a case, whose rows are those of one sequence, and their time."""

    case: Case
    tiles: Tiles
    milliseconds: float


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: str
    triton: str
    source: str
    measured: list[Measured]
    prefill: list[MeasuredTiles] = []


class TunedTable:
    """Configs by case. One that was not measured gets that of the nearest case of its shape, or the heuristic's."""

    def __init__(self, measured: Iterable[Measured] = (), prefill: Iterable[MeasuredTiles] = ()) -> None:
        self._by_shape: dict[str, dict[Case, Measured]] = {}
        self._tiles: dict[str, dict[Case, MeasuredTiles]] = {}
        for one in measured:
            self.put(one)
        for tiles in prefill:
            self.put_tiles(tiles)

    @property
    def measured(self) -> list[Measured]:
        """All of it, in the order it came."""
        return [one for cases in self._by_shape.values() for one in cases.values()]

    def put(self, measured: Measured) -> None:
        """Replaces what was known of that case."""
        self._by_shape.setdefault(measured.case.shape, {})[measured.case] = measured

    @property
    def prefill(self) -> list[MeasuredTiles]:
        """All tiles, in the order they came."""
        return [one for cases in self._tiles.values() for one in cases.values()]

    def put_tiles(self, measured: MeasuredTiles) -> None:
        """Replaces what was known of that case."""
        self._tiles.setdefault(measured.case.shape, {})[measured.case] = measured

    def tiles(self, shape: Shape, keys: int, rows: int) -> Tiles | None:
        """For up to `rows` rows of a sequence over up to `keys` keys: the nearest case's; None if none was measured."""
        cases = self._tiles.get(shape.key)
        return cases[_nearest(cases, keys, rows)].tiles if cases else None

    def all_tiles(self, shape: Shape) -> set[Tiles]:
        """All that `tiles` may return for a shape."""
        return {one.tiles for one in self._tiles.get(shape.key, {}).values()}

    def leave_out_tiles(self, shape: Shape, tiles: Tiles) -> None:
        """Forgets what was measured with these tiles, which are no good here."""
        cases = self._tiles[shape.key]
        for case in [case for case, one in cases.items() if one.tiles == tiles]:
            del cases[case]

    def config(self, shape: Shape, keys: int, rows: int) -> Config:
        """For rows of up to `keys` keys each."""
        cases = self._by_shape.get(shape.key)
        if not cases:
            return heuristic(shape, rows)
        return cases[_nearest(cases, keys, rows)].config

    def configs(self, shape: Shape) -> set[Config]:
        """All that `config` may return for a shape."""
        return {one.config for one in self._by_shape.get(shape.key, {}).values()} or set(heuristics(shape))

    def leave_out(self, shape: Shape, config: Config) -> bool:
        """Forgets what was measured with that config's kernel, which is no good here. False if nothing was."""
        cases = self._by_shape.get(shape.key, {})
        unfit = [case for case, one in cases.items() if kernel_of(one.config) == kernel_of(config)]
        for case in unfit:
            del cases[case]
        return bool(unfit)

    @classmethod
    def load(cls, device: str, directory: Path | None = None) -> TunedTable:
        """The table of this device and kernels, in a directory, or what is shipped and over it what the cache has;
        an empty one, with a logged reason, if a file is no good or measured with another minor version of Triton."""
        table = cls()
        for place in (SHIPPED, None) if directory is None else (directory,):
            file = _read(device, table_path(device, place))
            for one in file.measured if file else ():
                table.put(one)
            for tiles in file.prefill if file else ():
                table.put_tiles(tiles)
        return table

    def save(self, device: str, directory: Path | None = None) -> Path:
        """Writes the table whole or not at all; returns where. Raises OSError."""
        path = table_path(device, directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        body = msgspec.json.encode(_File(device, triton.__version__, source_hash(), self.measured, self.prefill))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as written:
            written.write(msgspec.json.format(body, indent=1) + b"\n")
        Path(written.name).replace(path)
        return path


def _read(device: str, path: Path) -> _File | None:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        if (file.device, _minor(file.triton), file.source) != (device, _minor(triton.__version__), source_hash()):
            raise msgspec.ValidationError("it was measured with another device, Triton or kernel")
        numbers = [(one.case, _numbers(one.config)) for one in file.measured]
        numbers += [(one.case, _tile_numbers(one.tiles)) for one in file.prefill]
        if any(min(case.keys, case.rows, *found) < 1 for case, found in numbers):
            raise msgspec.ValidationError("expected positive numbers")
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        structlog.get_logger().warning("tuned table ignored", path=str(path), reason=str(error))
        return None
    return file


def _nearest(cases: Iterable[Case], keys: int, rows: int) -> Case:
    def distance(case: Case) -> float:
        return abs(math.log2(max(keys, 1) / case.keys)) + abs(math.log2(max(rows, 1) / case.rows))

    return min(cases, key=distance)


def _minor(version: str) -> list[str]:
    # Another compiler may want more of the device for a config than there is.
    return version.split(".")[:2]


def table_path(device: str, directory: Path | None = None) -> Path:
    """Where the table of this device and kernels lies."""
    if directory is None:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distkv" / "triton"
    name = re.sub(r"[^A-Za-z0-9]+", "-", device)
    return directory / f"decode-{name}-{source_hash()[:12]}.json"


def source_hash() -> str:
    """Of the files that decide what a config does."""
    texts = ((_KERNELS / name).read_bytes() for name in _SOURCES)
    return hashlib.sha256(b"\n".join(texts)).hexdigest()


def candidates(shape: Shape) -> list[Config]:
    """The heuristic's configs and those around them, and persistent grids with their tiles; the likeliest first."""
    first = heuristic(shape)
    tiles = [tile for tile in (first.tile_keys, first.tile_keys // 2, first.tile_keys * 2) if 16 <= tile <= 128]
    found = list(heuristics(shape))
    for tile in tiles:
        around = itertools.product((first.num_warps,), (2, 3, 4), (2, 3, 4, 6, 12))
        found += [Config(tile, *numbers) for numbers in around]
    found += [
        replace(first, num_stages=stages, programs_per_sm=rounds * resident, resident=resident)
        for stages, resident, rounds in itertools.product((2, 3, 4), (2, 3, 4), (1, 2, 4))
    ]
    other_warps = 12 - first.num_warps  # 4 or 8
    found += [Config(first.tile_keys, other_warps, *numbers) for numbers in itertools.product((2, 3, 4), (2, 4, 8))]
    return list(dict.fromkeys(found))


def best_of(
    case: Case,
    configs: Iterable[Config],
    runner: Callable[[Config], Callable[[], object]],
    timer: Callable[[Callable[[], object]], float],
) -> Measured | None:
    """The config whose run is the fastest; see `fastest`."""
    best = fastest(case, configs, runner, timer)
    return None if best is None else Measured(case, *best)


def fastest(
    case: Case,
    choices: Iterable[T],
    runner: Callable[[T], Callable[[], object]],
    timer: Callable[[Callable[[], object]], float],
) -> tuple[T, float] | None:
    """The choice whose run is the fastest, the first of equals, and its milliseconds. None if none compiles and fits.

    runner: makes what is timed. timer: runs it and returns milliseconds.
    """
    best: tuple[T, float] | None = None
    for choice in choices:
        try:
            milliseconds = timer(runner(choice))
        except (triton.TritonError, RuntimeError) as error:
            structlog.get_logger().info("config left out", case=str(case), config=str(choice), reason=str(error))
            continue
        if best is None or milliseconds < best[1]:
            best = choice, milliseconds
    return best


def kernel_of(config: Config) -> tuple[int, ...]:
    """What is compiled for a config: how many programs there are is no part of it."""
    return config.tile_keys, config.num_warps, config.num_stages, min(config.resident, 1)


def _numbers(config: Config) -> tuple[int, ...]:
    return config.tile_keys, config.num_warps, config.num_stages, config.programs_per_sm, config.resident + 1


def _tile_numbers(tiles: Tiles) -> tuple[int, ...]:
    return tiles.rows, tiles.keys, tiles.num_warps, tiles.num_stages
