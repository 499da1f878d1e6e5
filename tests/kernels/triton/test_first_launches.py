"""A warm start launches whatever a request can reach: kernels are compiled for what is counted here."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

import triton

from distkv.kernels import AttentionMetadata, BlockTable, RowKv
from distkv.kernels.triton import merge
from distkv.kernels.triton.attention import decode, prefill
from distkv.kernels.triton.attention.prefill_tiles import Tiles
from distkv.kernels.triton.attention.templates import Config, Shape, heuristic
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.tuning.tuned_table import Case, Measured, MeasuredTiles, TunedTable

TOKENS, DIM = 16, 32


class Launches:
    """In place of a kernel: what it would be compiled for, without running it."""

    def __init__(self, name: str, seen: set[Any]) -> None:
        self._name, self._seen = name, seen

    def __getitem__(self, _grid: Any) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            types = tuple(map(_type_of, arguments))
            self._seen.add((self._name, types, tuple(sorted((name, str(value)) for name, value in constants.items()))))

        return launch


def _type_of(argument: Any) -> str:
    if isinstance(argument, tuple):
        return ", ".join(map(_type_of, argument))
    return str(argument.dtype) if isinstance(argument, torch.Tensor) else type(argument).__name__


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    found: set[Any] = set()
    for module, name in [
        (decode, "_decode_kernel"), (decode, "_reduce_kernel"), (prefill, "_prefill"), (prefill, "_merge_splits"),
        (merge, "_merge_kernel"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, Launches(name, found))
    return found


def layer(kv_heads: int, dtype: torch.dtype) -> RowKv:
    memory = torch.zeros(2, 2, kv_heads, TOKENS * DIM).to(dtype)
    return RowKv.of(memory[:, 0], memory[:, 1], DIM, TOKENS)


@pytest.mark.parametrize("windows", [(None,), (None, 700, 64)])
@pytest.mark.parametrize("heads", [(4, 2), (8, 1), (130, 1)])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("is_tuned", [False, True])
def test_nothing_is_left_to_compile(
    seen: set[Any], windows: tuple[int | None, ...], heads: tuple[int, int], kv_dtype: torch.dtype, is_tuned: bool
) -> None:
    """Rows of every kind over contexts of up to 100,000 tokens."""
    kv = layer(heads[1], kv_dtype)
    q = torch.zeros(100, heads[0], DIM, dtype=torch.bfloat16)
    shape = Shape.of(q, kv.k)
    cases = [(1024, 1, Config(32, 4, 2, 3)), (32768, 1, Config(64, 8, 3, 6)), (1024, 64, Config(16, 4, 2, 12, 3))]
    measured = [Measured(Case(shape.key, keys, rows), config, 1.0) for keys, rows, config in cases]
    tiles = [(1024, 1024, Tiles(64, 32, 4, 2)), (9000, 17, Tiles(128, 64, 8, 2))]
    prefill = [MeasuredTiles(Case(shape.key, keys, rows), one, 1.0) for keys, rows, one in tiles]
    backend = TritonBackend(TunedTable(measured, prefill) if is_tuned else TunedTable())
    assert backend.warm_up(heads[0], kv, q.dtype, windows) > 0
    ready = set(seen)
    for num_keys in (1, 900, 8200, 33_000, 100_000):
        blocks = -(-num_keys // TOKENS)
        table = BlockTable([0] * blocks, range(0, blocks * TOKENS, TOKENS), num_keys, TOKENS)
        for rows in (1, 2, 3, 17, 100):
            for count in (1, 3, 70):
                where = tuple(range(rows) for _ in range(count))
                metadata = AttentionMetadata(where, (table,) * count, torch.full((rows,), num_keys - 1))
                for window in windows:
                    backend.attend(q[:rows], kv, metadata, 0.1, window)
    for count in range(1, 70):
        partial = torch.zeros(3, heads[0], DIM), torch.zeros(3, heads[0])
        backend.merge([partial] * count)
    assert seen - ready == set()
    names = {"_decode_kernel", "_reduce_kernel", "_prefill", "_merge_splits", "_merge_kernel"}
    assert {name for name, _, _ in ready} == names


class Refusing(Launches):
    """Refuses tiles of so many keys, as a device or a compiler does. constant: that says how many they are."""

    def __init__(self, name: str, seen: set[Any], tile_keys: int, error: Exception, constant: str = "TILE") -> None:
        super().__init__(name, seen)
        self._tile_keys, self._error, self._constant = tile_keys, error, constant

    def __getitem__(self, grid: Any) -> Any:
        launch = super().__getitem__(grid)

        def launch_or_refuse(*arguments: Any, **constants: Any) -> None:
            if constants[self._constant] == self._tile_keys:
                raise self._error
            launch(*arguments, **constants)

        return launch_or_refuse


UNFIT = [triton.OutOfResources(300_000, 232_448, "shared memory"), RuntimeError("PassManager::run failed")]


@pytest.mark.parametrize("error", UNFIT, ids=["too large", "not compiled"])
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_measured_config_that_does_not_fit_is_left_out(
    seen: set[Any], monkeypatch: pytest.MonkeyPatch, error: Exception, is_alone: bool
) -> None:
    monkeypatch.setattr(decode, "_decode_kernel", Refusing("_decode_kernel", seen, 256, error))
    kv, q = layer(2, torch.bfloat16), torch.zeros(1, 4, DIM, dtype=torch.bfloat16)
    shape = Shape.of(q, kv.k)
    assert heuristic(shape).tile_keys != 256
    good = [] if is_alone else [Measured(Case(shape.key, 1024, 1), Config(32, 4, 2, 3), 1.0)]
    unfit = [Measured(Case(shape.key, keys, 1), Config(256, 4, 2, count), 1.0) for keys, count in ((64, 3), (9000, 6))]
    table = TunedTable([*good, *unfit])
    with structlog.testing.capture_logs() as lines:
        assert TritonBackend(table).warm_up(4, kv, q.dtype, (None,)) > 0
    assert [(line["event"], line["log_level"], line["reason"]) for line in lines] == [
        ("tuned config left out", "warning", str(error))
    ]
    assert table.measured == good
    wanted = heuristic(shape) if is_alone else good[0].config
    assert table.config(shape, 9000, 1) == wanted
    tiles = {dict(constants)["TILE"] for name, _, constants in seen if name == "_decode_kernel"}
    assert tiles == {str(wanted.tile_keys)}


@pytest.mark.parametrize("error", UNFIT, ids=["too large", "not compiled"])
def test_measured_tiles_that_do_not_fit_are_left_out(
    seen: set[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(prefill, "_prefill", Refusing("_prefill", seen, 256, error, "BLOCK_N"))
    kv, q = layer(2, torch.bfloat16), torch.zeros(100, 4, DIM, dtype=torch.bfloat16)
    shape = Shape.of(q, kv.k)
    good = MeasuredTiles(Case(shape.key, 1024, 1024), Tiles(64, 32, 4, 2), 1.0)
    unfit = [MeasuredTiles(Case(shape.key, keys, 100), Tiles(128, 256, 8, 2), 1.0) for keys in (64, 900)]
    table = TunedTable(prefill=[good, *unfit])
    backend = TritonBackend(table)
    with structlog.testing.capture_logs() as lines:
        assert backend.warm_up(4, kv, q.dtype, (None,)) > 0
    assert [(line["event"], line["reason"]) for line in lines] == [("tuned config left out", str(error))]
    assert table.prefill == [good]
    metadata = AttentionMetadata((range(100),), (BlockTable([0] * 7, range(0, 112, 16), 112, 16),), torch.arange(100))
    seen.clear()
    backend.attend(q, kv, metadata, 0.1)
    assert {dict(constants)["BLOCK_N"] for _, _, constants in seen if "BLOCK_N" in dict(constants)} == {"32"}


def test_the_chosen_config_that_does_not_fit_ends_a_start(seen: set[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kv, q = layer(2, torch.bfloat16), torch.zeros(1, 4, DIM, dtype=torch.bfloat16)
    tile = heuristic(Shape.of(q, kv.k)).tile_keys
    monkeypatch.setattr(decode, "_decode_kernel", Refusing("_decode_kernel", seen, tile, UNFIT[0]))
    with pytest.raises(triton.OutOfResources, match="shared memory"):
        TritonBackend(TunedTable()).warm_up(4, kv, q.dtype, (None,))


def test_it_runs_and_writes_no_key() -> None:
    """On a GPU these are the kernels themselves; here they are interpreted."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory = torch.randn(1, 2, 2, TOKENS * DIM, device=device)
    kv = RowKv.of(memory[:, 0], memory[:, 1], DIM, TOKENS)
    before = memory.clone()
    assert TritonBackend(TunedTable()).warm_up(4, kv, torch.float32, (None, 7)) > 0
    assert torch.equal(memory, before)
