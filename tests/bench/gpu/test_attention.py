"""`distkv bench attention --device cuda`: interpreted on the CPU, what it computes; on a GPU also its timing."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.bench.computing import attention
from distkv.bench.gpu import attention as gpu_attention
from distkv.bench.harness.timing.gpu import gpu_of
from distkv.bench.workloads.computing import gpu_attention as gpu_workload
from distkv.bench.workloads.computing.attention import Shape
from distkv.bench.workloads.computing.gpu_attention import Cells, PagedBatch
from distkv.errors import ConfigError
from distkv.kernels import Backend, LayerKv, Partial
from distkv.kernels.triton.attention import templates
from distkv.kernels.triton.attention.prefill_tiles import Tiles
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.tuning import measure
from distkv.kernels.triton.tuning.tuned_table import Case, Measured, MeasuredTiles, TunedTable
from tests.kernels.triton.libraries import documented

SHAPE, CELLS = Shape(4, 2, 32), Cells(2, 48)
SMALL, FEW = Shape(2, 1, 16), Cells(1, 16)
"""Where only the report is looked at: an interpreter takes seconds for more."""


@pytest.fixture
def backend() -> Backend:
    return TritonBackend()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_all_contenders_compute_the_same_attention(backend: Backend, device: torch.device) -> None:
    batch = PagedBatch(SHAPE, CELLS, device, 1)
    out, _ = batch.ours(backend, 1)()
    others = batch.sdpa(1)
    assert others
    for work in others.values():
        torch.testing.assert_close(work().transpose(1, 2).flatten(0, 1).float(), out, atol=2e-2, rtol=2e-2)
    out, _ = batch.ours(backend, 48)()
    for work in batch.sdpa(48).values():
        torch.testing.assert_close(work().transpose(1, 2).flatten(0, 1).float(), out, atol=2e-2, rtol=2e-2)


def test_every_layer_is_gone_over_as_it_lies_in_a_pool(backend: Backend, device: torch.device) -> None:
    batch = PagedBatch(SHAPE, CELLS, device, 3)
    assert batch.num_bytes == 3 * PagedBatch.layer_bytes(SHAPE, CELLS) == 3 * 2 * 2 * 48 * 2 * 32 * 2
    rblock_bytes = batch.num_bytes // batch.slots.numel()
    assert {kv.k.stride(0) * kv.k.element_size() for kv in batch.kvs} == {rblock_bytes}
    seen: list[int] = []

    class Seeing(TritonBackend):
        def attend(self, q: torch.Tensor, kv: LayerKv, *arguments: Any, **options: Any) -> Partial:
            seen.append(kv.k.data_ptr())
            return super().attend(q, kv, *arguments, **options)

    out, _ = batch.ours(Seeing(), 1)()
    assert seen == [kv.k.data_ptr() for kv in batch.kvs] and len(set(seen)) == 3
    last = PagedBatch(SHAPE, CELLS, device, 1)
    last.kvs[0].k.copy_(batch.kvs[2].k)
    last.kvs[0].v.copy_(batch.kvs[2].v)
    torch.testing.assert_close(last.ours(backend, 1)()[0], out)


def test_the_copy_is_of_what_a_layer_has(device: torch.device) -> None:
    batch = PagedBatch(SHAPE, CELLS, device, 2)
    copied = batch.copying()().view(torch.bfloat16).view(batch.slots.numel(), 2, SHAPE.kv_heads, -1)
    slots = batch.slots.flatten().to(device)
    assert torch.equal(copied[:, 0], batch.kvs[1].k[slots].flatten(2))
    assert torch.equal(copied[:, 1], batch.kvs[1].v[slots].flatten(2))


def test_contiguous_contenders_meet_no_warm_cache(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """As many layers of keys as are more than a cache has, and no more memory than that."""
    layer = PagedBatch.layer_bytes(SHAPE, CELLS)
    for cold, copies in ((1, 1), (layer, 1), (layer + 1, 2), (100 * layer, 5)):
        monkeypatch.setattr(gpu_workload, "COLD_BYTES", cold)
        met: list[int] = []
        monkeypatch.setattr(gpu_workload, "_sdpa", lambda _kind, q, k, _v, _causal, met=met: met.append(k.data_ptr()))
        works = PagedBatch(SHAPE, CELLS, device, 5).sdpa(1)
        met.clear()
        next(iter(works.values()))()
        assert len(met) == 5 and len(set(met)) == copies


def test_a_pool_has_as_many_layers_as_half_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_attention, "free_bytes", lambda _device: 1000)
    device = torch.device("cpu")
    assert [gpu_attention.fitting(32, size, device) for size in (1, 15, 16, 100, 600)] == [32, 32, 31, 5, 1]


def test_every_goal_is_said(backend: Backend, device: torch.device) -> None:
    found = gpu_attention.measure_on(device, backend, lambda _: None, (SMALL,), (FEW,), (FEW,), 2, 1 << 20, 2)
    assert any("copy of the rBlocks" in variants for variants in found.samples.values())
    goals = [goal.goal for goal in found.goals]
    assert len(goals) == len(set(goals)) == 3 and len(found.samples) == 2
    assert all(min(rates) > 0 for variants in found.samples.values() for rates in variants.values())


def test_a_library_that_fails_costs_its_own_figures_only(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, device: torch.device
) -> None:
    class Other(documented.BatchDecodeWithPagedKVCacheWrapper):
        def run(self, *arguments: Any, **options: Any) -> Any:
            raise TypeError("run() got an unexpected keyword argument\nand more")

    changed = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=Other,
        BatchPrefillWithPagedKVCacheWrapper=documented.BatchPrefillWithPagedKVCacheWrapper,
    )
    monkeypatch.setitem(sys.modules, "flashinfer", changed)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    monkeypatch.setitem(sys.modules, "flash_attn_3", None)
    found = gpu_attention.measure_on(device, backend, lambda _: None, (SMALL,), (FEW, FEW), (FEW,), 1, 1 << 20, 1)
    decode, prefill = found.samples.values()
    assert "FlashInfer" not in decode and "FlashInfer" in prefill
    assert found.facts["libraries that did not run"] == (
        "FlashInfer: TypeError: run() got an unexpected keyword argument (decode (2, 1, 16) 1 x 16 keys, GB/s); "
        "FlashAttention-3: not installed (decode (2, 1, 16) 1 x 16 keys, GB/s and 1 more)"
    )


def test_a_library_over_the_same_rblocks_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, device: torch.device
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", documented.FLASHINFER)
    batch = PagedBatch(SHAPE, CELLS, device, 2)
    for rows in (1, 48):
        out, _ = batch.ours(backend, rows)()
        found, _ = batch.libraries(rows)
        theirs, lse = found["FlashInfer"]()
        torch.testing.assert_close(theirs.float(), out, atol=2e-2, rtol=2e-2)
        assert lse.shape == out.shape[:2]


def test_a_device_that_is_not_here_is_refused_before_anything_is_measured() -> None:
    for name in ("cuda:99", "cpu"):
        with pytest.raises(ConfigError, match=f"{name} is not here"):
            gpu_of(name)
    with pytest.raises(ConfigError, match="cuda:99 is not here"):
        attention.main.main(["--device", "cuda:99"], standalone_mode=False)


def test_tuning_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: torch.device) -> None:
    monkeypatch.setattr(measure, "CASES", ((1024, 1), (8192, 1)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    asked: list[str] = []

    kept: list[int] = []

    def measured(
        table: TunedTable,
        shape: templates.Shape,
        _: torch.device,
        layers: int,
        cases: list[tuple[int, int]],
        *,
        timer: Any,
        ends_s: float,
    ) -> None:
        assert layers == 3 and timer(lambda: None) >= 0 and ends_s == math.inf
        asked.append(shape.key)
        kept.append(len(TunedTable.load("a GPU", tmp_path).measured))
        ((keys, rows),) = cases
        config = templates.Config(tile_keys=16, num_warps=8, num_stages=2, programs_per_sm=3)
        table.put(Measured(Case(shape.key, keys, rows), config, 1.5))

    def measured_tiles(
        table: TunedTable,
        shape: templates.Shape,
        _: torch.device,
        layers: int,
        cases: list[tuple[int, int]],
        **_more: Any,
    ) -> None:
        ((keys, rows),) = cases
        table.put_tiles(MeasuredTiles(Case(shape.key, keys, rows), Tiles(64, 32, 4, layers), 1.5))

    monkeypatch.setattr(measure, "PREFILL_CASES", ((64, 64), (512, 9)))
    monkeypatch.setattr(measure, "tune_prefill", measured_tiles)
    monkeypatch.setattr(measure, "tune", measured)
    said: list[str] = []
    gpu_attention.backend_for(said.append, (SHAPE,), device, tmp_path, layers=3, tune_s=math.inf)
    (file,) = tmp_path.iterdir()
    assert asked == ["4/2x32 P16 bfloat16 bfloat16"] * 2 and str(file) in said[-1]
    assert kept == [0, 1], "a case that was measured is kept at once"
    assert [one.case.keys for one in TunedTable.load("a GPU", tmp_path).measured] == [1024, 8192]
    assert [one.case.keys for one in TunedTable.load("a GPU", tmp_path).prefill] == [64, 512]


def test_tuning_shares_its_time_among_cases_and_shapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: torch.device
) -> None:
    """Where it ends too soon every shape has its first cases; what one case leaves of its share the others have."""
    monkeypatch.setattr(measure, "CASES", ((1024, 1), (8192, 1)))
    monkeypatch.setattr(measure, "PREFILL_CASES", ((512, 9),))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    asked: list[tuple[int, str, int, float]] = []

    def measured(_table: Any, shape: templates.Shape, *arguments: Any, ends_s: float, **_more: Any) -> None:
        asked.append((shape.heads, "", arguments[2][0][0], ends_s))

    def measured_tiles(_table: Any, shape: templates.Shape, *arguments: Any, ends_s: float, **_more: Any) -> None:
        asked.append((shape.heads, "tiles", arguments[2][0][0], ends_s))

    monkeypatch.setattr(measure, "tune", measured)
    monkeypatch.setattr(measure, "tune_prefill", measured_tiles)
    shapes = SHAPE, Shape(8, 2, 32)
    gpu_attention.backend_for(lambda _: None, shapes, device, tmp_path, layers=3, tune_s=60.0)
    assert asked == [
        (4, "", 1024, 110.0),
        (8, "", 1024, 120.0),
        (4, "", 8192, 130.0),
        (8, "", 8192, 140.0),
        (4, "tiles", 512, 150.0),
        (8, "tiles", 512, 160.0),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.timeout(250)
def test_a_quick_run(tmp_path: Path) -> None:
    file = tmp_path / "attention.json"
    attention.main.main(["--device", "cuda", "--quick", "--json", str(file)], standalone_mode=False)
    assert json.loads(file.read_text())["machine"]["gpu"] != "none"
