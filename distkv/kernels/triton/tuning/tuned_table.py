"""Configs of the decode kernels that were measured, kept between runs.

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
from pathlib import Path

import msgspec
import structlog
import triton

from distkv.kernels.triton.attention.templates import Config, Shape, heuristic

SHIPPED = Path(__file__).parent / "tables"
_KERNELS = Path(__file__).parents[1]
_SOURCES = (
    "casts.py",
    "merge.py",
    "metadata.py",
    "attention/decode.py",
    "attention/decode_plan.py",
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


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: str
    triton: str
    source: str
    measured: list[Measured]


class TunedTable:
    """Configs by case. One that was not measured gets that of the nearest case of its shape, or the heuristic's."""

    def __init__(self, measured: Iterable[Measured] = ()) -> None:
        self._by_shape: dict[str, dict[Case, Measured]] = {}
        for one in measured:
            self.put(one)

    @property
    def measured(self) -> list[Measured]:
        """All of it, in the order it came."""
        return [one for cases in self._by_shape.values() for one in cases.values()]

    def put(self, measured: Measured) -> None:
        """Replaces what was known of that case."""
        self._by_shape.setdefault(measured.case.shape, {})[measured.case] = measured

    def config(self, shape: Shape, keys: int, rows: int) -> Config:
        """For rows of up to `keys` keys each."""
        cases = self._by_shape.get(shape.key)
        if not cases:
            return heuristic(shape)

        def distance(case: Case) -> float:
            return abs(math.log2(max(keys, 1) / case.keys)) + abs(math.log2(max(rows, 1) / case.rows))

        return cases[min(cases, key=distance)].config

    def configs(self, shape: Shape) -> set[Config]:
        """All that `config` may return for a shape."""
        return {one.config for one in self._by_shape.get(shape.key, {}).values()} or {heuristic(shape)}

    def leave_out(self, shape: Shape, config: Config) -> bool:
        """Forgets what was measured with that config's kernel, which is no good here. False if nothing was."""
        cases = self._by_shape.get(shape.key, {})
        unfit = [case for case, one in cases.items() if _kernel(one.config) == _kernel(config)]
        for case in unfit:
            del cases[case]
        return bool(unfit)

    @classmethod
    def load(cls, device: str, directory: Path | None = None) -> TunedTable:
        """The table of this device and kernels, in a directory, or what is shipped and over it what the cache has;
        an empty one, with a logged reason, if a file is no good or measured with another minor version of Triton."""
        table = cls()
        for place in (SHIPPED, None) if directory is None else (directory,):
            for one in _read(device, table_path(device, place)):
                table.put(one)
        return table

    def save(self, device: str, directory: Path | None = None) -> Path:
        """Writes the table whole or not at all; returns where. Raises OSError."""
        path = table_path(device, directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        body = msgspec.json.encode(_File(device, triton.__version__, source_hash(), self.measured))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as written:
            written.write(msgspec.json.format(body, indent=1) + b"\n")
        Path(written.name).replace(path)
        return path


def _read(device: str, path: Path) -> list[Measured]:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        if (file.device, _minor(file.triton), file.source) != (device, _minor(triton.__version__), source_hash()):
            raise msgspec.ValidationError("it was measured with another device, Triton or kernel")
        if any(min(one.case.keys, one.case.rows, *_numbers(one.config)) < 1 for one in file.measured):
            raise msgspec.ValidationError("expected positive numbers")
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        structlog.get_logger().warning("tuned table ignored", path=str(path), reason=str(error))
        return []
    return file.measured


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
    """The heuristic's config and those around it."""
    first = heuristic(shape)
    tiles = [tile for tile in (first.tile_keys // 2, first.tile_keys, first.tile_keys * 2) if 16 <= tile <= 128]
    around = itertools.product(tiles, (4, 8), (2, 3, 4), (3, 6, 12))
    return [first, *(config for numbers in around if (config := Config(*numbers)) != first)]


def best_of(
    case: Case,
    configs: Iterable[Config],
    runner: Callable[[Config], Callable[[], object]],
    timer: Callable[[Callable[[], object]], float],
) -> Measured | None:
    """The config whose run is the fastest, the first of equals. None if none compiles and fits the device.

    runner: makes what is timed. timer: runs it and returns milliseconds.
    """
    best: Measured | None = None
    for config in configs:
        try:
            milliseconds = timer(runner(config))
        except (triton.TritonError, RuntimeError) as error:
            structlog.get_logger().info("config left out", case=str(case), config=str(config), reason=str(error))
            continue
        if best is None or milliseconds < best.milliseconds:
            best = Measured(case, config, milliseconds)
    return best


def _kernel(config: Config) -> tuple[int, ...]:
    """What is compiled for a config: how many programs there are is no part of it."""
    return config.tile_keys, config.num_warps, config.num_stages


def _numbers(config: Config) -> tuple[int, ...]:
    return config.tile_keys, config.num_warps, config.num_stages, config.programs_per_sm
