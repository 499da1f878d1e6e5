"""`distkv bench transfer` from the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from distkv.bench.computing import transfer
from distkv.bench.transfers.layouts import KINDS, RUN_LENGTHS, Layout, fill
from distkv.bench.transfers.placement import placements
from distkv.wire.links import PoolMemory
from distkv.wire.links.memory.runs import runs_of
from tests.bench.quick_run import quick_report


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SIZES_KB", (4, 32))
    monkeypatch.setattr(transfer, "IDLE_S", 0.1)
    report = quick_report(transfer.main, tmp_path)
    cases = {row["case"] for row in report["results"]}
    variants = {row["variant"] for row in report["results"]}
    kinds = {*KINDS, "scattered, in pairs"} if "shm, verified" in variants else KINDS
    expected = {f"{size} KB {kind}, GB/s" for size in (4, 32) for kind in kinds} | {transfer.QUERIES}
    beside_ucx = {transfer.BESIDE_UCX} if transfer.UCX_MESSAGES in variants else set()
    assert cases == expected | beside_ucx
    queries = {row["variant"] for row in report["results"] if row["case"] == transfer.QUERIES}
    assert queries == {"shm", "tcp"} | {
        f"{name}, {where}" for name in ("shm", "tcp") for where in placements() if where
    }
    always = set(transfer.CONTENDERS) - set(transfer.UCX_EXCHANGES)
    assert {"memcpy", "shm", "tcp", "tcp, a read per block", *always} <= variants
    with_ucx = transfer.UCX_EXCHANGES.keys() <= variants
    assert with_ucx == (importlib.util.find_spec("libucx") is not None)
    unresolved = [goal["goal"] for goal in report["goals"] if goal["met"] is None]
    assert len(unresolved) >= 1 + (not with_ucx) and len(report["goals"]) == 6 + len(queries) + 4 * (
        "shm, verified" in variants
    )


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_have_the_runs_that_they_say(kind: str) -> None:
    layout = Layout.of(kind, 64)  # type: ignore[arg-type]
    with PoolMemory(64, 128) as source, PoolMemory(64, 128) as target:
        runs = runs_of(layout.source, 64, layout.views(target))
        length = RUN_LENGTHS[kind] or 64  # type: ignore[index]
        assert set(runs.sizes.tolist()) == {length * 64} and len(runs) == 64 // length
        fill(source)
        layout.clear(target)
        assert not layout.is_here(target)
        for slot, block in zip(layout.source, layout.blocks(target), strict=True):
            block[:] = source.view[slot * 64 : (slot + 1) * 64]
        assert layout.is_here(target)
        layout.blocks(target)[-1][0] ^= 1
        assert not layout.is_here(target)
        del runs
