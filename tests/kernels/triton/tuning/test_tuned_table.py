"""The cache of measured configs: choosing, keeping, and refusing what is no good."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

import triton

from distkv.kernels.triton.attention import prefill_tiles
from distkv.kernels.triton.attention.prefill_tiles import Tiles
from distkv.kernels.triton.attention.templates import Config, Shape, heuristic
from distkv.kernels.triton.tuning import measure, tuned_table
from distkv.kernels.triton.tuning.measure import tune, tune_prefill
from distkv.kernels.triton.tuning.tuned_table import (
    Case,
    Measured,
    MeasuredTiles,
    TunedTable,
    best_of,
    candidates,
    table_path,
)

SHAPE = Shape(4, 2, 16, 16, "float32", "float32")
FAST, SLOW, TOO_LARGE, REFUSED = (Config(tile, 4, 2, 3) for tile in (32, 64, 128, 256))


def measured(keys: int, rows: int, config: Config, shape: Shape = SHAPE) -> Measured:
    return Measured(Case(shape.key, keys, rows), config, 1.0)


def test_without_measurements_the_heuristic_chooses() -> None:
    assert TunedTable().config(SHAPE, 100, 1) == heuristic(SHAPE)
    other = TunedTable([measured(1024, 1, FAST)])
    assert other.config(replace(SHAPE, head_dim=64), 1024, 1) == heuristic(replace(SHAPE, head_dim=64))


@pytest.mark.parametrize(
    ("keys", "rows", "chosen"), [(1024, 1, FAST), (0, 0, FAST), (3000, 3, FAST), (9000, 1, SLOW), (1024, 40, TOO_LARGE)]
)
def test_the_nearest_case_is_chosen(keys: int, rows: int, chosen: Config) -> None:
    table = TunedTable([measured(1024, 1, FAST), measured(32768, 1, SLOW), measured(1024, 64, TOO_LARGE)])
    assert table.config(SHAPE, keys, rows) == chosen


def test_a_case_has_one_config() -> None:
    table = TunedTable([measured(1024, 1, FAST), measured(1024, 1, SLOW)])
    assert table.config(SHAPE, 1024, 1) == SLOW
    assert len(table.measured) == 1


def test_a_table_is_found_again(tmp_path: Path) -> None:
    table = TunedTable(
        [measured(1024, 1, FAST), measured(1024, 8, SLOW), measured(8, 1, SLOW, replace(SHAPE, heads=8))]
    )
    path = table.save("GPU", tmp_path)
    assert TunedTable.load("GPU", tmp_path).measured == table.measured
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    table.put(measured(1024, 1, SLOW))
    table.save("GPU", tmp_path)
    assert TunedTable.load("GPU", tmp_path).config(SHAPE, 1024, 1) == SLOW


def test_tables_are_of_one_device_triton_and_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TunedTable([measured(1024, 1, FAST)]).save("GPU", tmp_path)
    assert TunedTable.load("another GPU", tmp_path).measured == []
    with monkeypatch.context() as patch:
        patch.setattr(triton, "__version__", "9.9")
        assert TunedTable.load("GPU", tmp_path).measured == []
    with monkeypatch.context() as patch:
        patch.setattr(tuned_table, "source_hash", lambda: "edited")
        assert TunedTable.load("GPU", tmp_path).measured == []
    assert len(TunedTable.load("GPU", tmp_path).measured) == 1


def test_what_the_cache_has_goes_before_what_is_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped, cache = tmp_path / "shipped", tmp_path / "cache"
    monkeypatch.setattr(tuned_table, "SHIPPED", shipped)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    TunedTable([measured(1024, 1, FAST), measured(8192, 1, FAST)]).save("GPU", shipped)
    assert TunedTable.load("GPU").config(SHAPE, 1024, 1) == FAST
    TunedTable([measured(1024, 1, SLOW)]).save("GPU")
    table = TunedTable.load("GPU")
    assert (table.config(SHAPE, 1024, 1), table.config(SHAPE, 8192, 1)) == (SLOW, FAST)


def test_another_patch_of_triton_measures_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    TunedTable([measured(1024, 1, FAST)]).save("GPU", tmp_path)
    monkeypatch.setattr(triton, "__version__", ".".join([*triton.__version__.split(".")[:2], "99"]))
    assert len(TunedTable.load("GPU", tmp_path).measured) == 1


def test_the_cache_lies_where_users_want_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert table_path("GPU").parent == tmp_path / "distkv" / "triton"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert table_path("GPU").parent == Path.home() / ".cache" / "distkv" / "triton"


def corrupted(text: str, change: str) -> str:
    return {
        "cut": text[: len(text) // 2],
        "empty": "",
        "a list": "[]",
        "a string for a number": text.replace('"tile_keys": 32', '"tile_keys": "32"'),
        "a grid of less than nothing": text.replace('"resident": 0', '"resident": -1'),
        "a tile of nothing": text.replace('"tile_keys": 32', '"tile_keys": 0'),
        "an unknown field": text.replace('"milliseconds"', '"seconds": 3, "milliseconds"'),
        "another device": text.replace('"device": "GPU"', '"device": "CPU"'),
    }[change]


@pytest.mark.parametrize(
    "change",
    [
        "cut",
        "empty",
        "a list",
        "a string for a number",
        "a tile of nothing",
        "a grid of less than nothing",
        "an unknown field",
        "another device",
    ],
)
def test_a_file_that_is_no_good_is_ignored_and_says_why(tmp_path: Path, change: str) -> None:
    path = TunedTable([measured(1024, 1, FAST)]).save("GPU", tmp_path)
    path.write_text(corrupted(path.read_text(), change))
    with structlog.testing.capture_logs() as lines:
        assert TunedTable.load("GPU", tmp_path).measured == []
    assert [(line["event"], line["path"]) for line in lines] == [("tuned table ignored", str(path))]
    assert lines[0]["reason"]


def test_a_missing_file_is_nothing_to_speak_of(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        assert TunedTable.load("GPU", tmp_path / "none").measured == []
    assert lines == []


def test_a_directory_in_its_place_is_ignored(tmp_path: Path) -> None:
    table_path("GPU", tmp_path).mkdir()
    with structlog.testing.capture_logs() as lines:
        assert TunedTable.load("GPU", tmp_path).measured == []
    assert "directory" in lines[0]["reason"]


def test_the_fastest_that_fits_wins() -> None:
    times = {FAST: 1.0, SLOW: 2.0}

    def runner(config: Config) -> Callable[[], object]:
        def run() -> Config:
            if config == TOO_LARGE:
                raise triton.OutOfResources(300_000, 232_448, "shared memory")
            if config == REFUSED:
                raise RuntimeError("PassManager::run failed")
            return config

        return run

    def timer(run: Callable[[], object]) -> float:
        return times[run()]

    case = Case(SHAPE.key, 1024, 1)
    with structlog.testing.capture_logs() as lines:
        assert best_of(case, [TOO_LARGE, SLOW, FAST, REFUSED, FAST], runner, timer) == Measured(case, FAST, 1.0)
        assert best_of(case, [TOO_LARGE], runner, timer) is None
    assert [line["event"] for line in lines] == ["config left out"] * 3
    assert "shared memory" in lines[0]["reason"]


def test_candidates_lie_around_the_heuristic() -> None:
    configs = candidates(SHAPE)
    assert configs[0] == heuristic(SHAPE)
    assert len(set(configs)) == len(configs) > 20
    assert all(16 <= config.tile_keys <= 128 for config in configs)


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_a_case_is_measured_over_all_layers_of_rblocks(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kv_dtype: str
) -> None:
    shape, met = replace(SHAPE, q_dtype="bfloat16", kv_dtype=kv_dtype), []

    def attend(_q: Tensor, k: Tensor, v: Tensor, *_arguments: object) -> None:
        met.append((k.data_ptr(), k.stride(0) * k.itemsize, k.shape[0]))
        assert k.float().isfinite().all() and v.float().std() > 0.5

    monkeypatch.setattr(measure, "decode_attention", attend)
    tune(TunedTable(), shape, device, 3, [(33, 2)], timer=lambda run: run() or 1.0, configs=[FAST])
    size = measure.layer_bytes(shape, 33, 2)
    assert size == 2 * 6 * 2 * 16 * 16 * getattr(torch, kv_dtype).itemsize
    assert len({address for address, _, _ in met}) == 3
    assert {(stride, slots) for _, stride, slots in met} == {(3 * size // 6, 6)}


def test_a_tuning_run_fills_the_table(device: torch.device) -> None:
    times = iter([3.0, 1.0, 2.0, 2.0, 3.0, 4.0])
    layers = 2

    def timer(run: Callable[[], object]) -> float:
        run()
        return next(times)

    table = TunedTable()
    first, second, third = FAST, SLOW, Config(16, 4, 2, 3)
    tune(table, SHAPE, device, layers, [(33, 1), (20, 2)], timer=timer, configs=[first, second, third])
    assert [one.milliseconds for one in table.measured] == [0.5, 1.0], "times are of a layer"
    assert table.config(SHAPE, 33, 1) == second
    assert table.config(SHAPE, 20, 2) == first
    assert msgspec.json.decode(msgspec.json.encode(table.measured), type=list[Measured]) == table.measured


def test_a_case_that_has_no_time_left_has_the_heuristics_config(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the better one of those that were begun before."""
    times = iter([3.0, 1.0, 2.0])
    now_s = iter([10.0, 21.0])
    monkeypatch.setattr(measure.time, "monotonic", lambda: next(now_s))
    table, configs = TunedTable(), [FAST, SLOW, Config(16, 4, 2, 3)]
    tune(table, SHAPE, device, 1, [(33, 1)], timer=lambda run: run() or next(times), configs=configs, ends_s=20.0)
    assert [one.config for one in table.measured] == [SLOW]
    tune(table, SHAPE, device, 1, [(20, 2)], timer=lambda run: run() or next(times), configs=configs[:1], ends_s=0.0)
    assert [one.config for one in table.measured] == [SLOW, FAST]


def test_kernels_are_compiled_many_at_a_time_before_they_are_timed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; one that does not compile keeps no other from it."""
    kernels: list[Config] = []
    monkeypatch.setattr(measure, "_compile", lambda choices, *_: kernels.extend(choices))
    configs = [Config(16, 4, 3, count, resident) for resident in (0, 2) for count in (3, 6, 12)]
    tune(TunedTable(), SHAPE, device, 1, [(33, 1)], timer=lambda run: run() or 1.0, configs=configs)
    assert kernels == [configs[0], configs[3]] or kernels == [configs[3], configs[0]]

    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    together = threading.Barrier(3)

    def runner(config: Config) -> Callable[[], None]:
        together.wait(60)
        if config == configs[1]:
            raise RuntimeError("out of resource: shared memory")
        return lambda: kernels.append(config)

    kernels.clear()
    measure._compile(configs[:3], runner, torch.device("cuda"))
    assert set(kernels) == {configs[0], configs[2]}


NARROW, WIDE = Tiles(16, 16, 4, 1), Tiles(16, 32, 4, 2)
HALVES = replace(SHAPE, q_dtype="float16", kv_dtype="float16")


def test_tiles_are_kept_beside_configs(tmp_path: Path) -> None:
    tiles = [
        MeasuredTiles(Case(SHAPE.key, 1024, 1024), NARROW, 1.0),
        MeasuredTiles(Case(SHAPE.key, 64, 9), WIDE, 2),
    ]
    TunedTable([measured(1024, 1, FAST)], tiles).save("GPU", tmp_path)
    table = TunedTable.load("GPU", tmp_path)
    assert (table.prefill, len(table.measured)) == (tiles, 1)
    assert [table.tiles(SHAPE, *case) for case in ((900, 700), (70, 8))] == [NARROW, WIDE]
    assert table.tiles(HALVES, 900, 700) is None and table.all_tiles(HALVES) == set()
    table.leave_out_tiles(SHAPE, WIDE)
    assert table.all_tiles(SHAPE) == {NARROW} and table.tiles(SHAPE, 70, 8) == NARROW


def test_a_table_without_tiles_is_one_too(tmp_path: Path) -> None:
    """As tuning runs of before have written them."""
    path = TunedTable([measured(1024, 1, FAST)]).save("GPU", tmp_path)
    text = msgspec.json.decode(path.read_bytes())
    del text["prefill"]
    path.write_bytes(msgspec.json.encode(text))
    table = TunedTable.load("GPU", tmp_path)
    assert len(table.measured) == 1 and table.prefill == []


def test_tuning_of_prefill_keeps_the_fastest_tiles(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    times, unfit = {NARROW: 4.0, WIDE: 2.0}, replace(WIDE, num_warps=8)
    real, met = measure.prefill_attention, []

    def attend(*arguments: Any, tiles: Tiles, **options: Any) -> None:
        if tiles == unfit:
            raise triton.OutOfResources(300_000, 232_448, "shared memory")
        real(*arguments, tiles=tiles, **options)
        met.append(tiles)

    def timer(run: Callable[[], object]) -> float:
        run()
        return times[met[-1]]

    monkeypatch.setattr(measure, "prefill_attention", attend)
    table = TunedTable()
    with structlog.testing.capture_logs() as lines:
        tune_prefill(table, HALVES, device, 2, [(70, 20)], timer=timer, choices=[NARROW, unfit, WIDE])
    assert table.prefill == [MeasuredTiles(Case(HALVES.key, 70, 20), WIDE, 1.0)], "times are of a layer"
    assert len(lines) == 1 and "shared memory" in lines[0]["reason"]


def test_candidates_for_prefill_begin_with_the_heuristics() -> None:
    shape = Shape(32, 8, 128, 16, "bfloat16", "bfloat16")
    found = prefill_tiles.candidates(shape)
    assert found[0] == prefill_tiles.prefill_tiles(shape, 65, alibi=False)
    assert len(found) == len(set(found)) > 1
