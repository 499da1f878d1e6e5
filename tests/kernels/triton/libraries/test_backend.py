"""Serving with attention of other libraries: which calls they take, and that ours takes the rest."""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.errors import ConfigError
from distkv.kernels import AttentionMetadata, BlockTable, Partial, RowKv
from distkv.kernels.attention.reference import micro_attention
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.libraries import flash_attention3, flash_infer
from distkv.kernels.triton.libraries.backend import LIBRARIES, LibraryBackend
from distkv.kernels.triton.libraries.flash_infer import Workspaces
from tests.kernels.triton.libraries import documented

CPU = torch.device("cpu")
TOKENS, DIM, HEADS, KV_HEADS = 16, 64, 4, 2
SCALE = DIM**-0.5
LOCAL = BlockTable((3, 0, 2), (0, 16, 32), 45, TOKENS)
WITH_GAPS = BlockTable((1, 5), (16, 64), 70, TOKENS)
LENT = BlockTable((4, 6), (16, 32), 48, TOKENS)


@pytest.fixture(params=LIBRARIES)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LibraryBackend:
    documented.install(monkeypatch)
    return LibraryBackend(request.param)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Plans and runs of the libraries."""
    seen: Counter[str] = Counter()

    def counted(kind: Any, name: str) -> None:
        before = getattr(kind, name)

        def call(*arguments: Any, **options: Any) -> Any:
            seen[name] += 1
            return before(*arguments, **options)

        monkeypatch.setattr(kind, name, call)

    for kind in (flash_attention3.FlashAttention3, flash_infer.FlashInfer):
        for name in ("__init__", "run"):
            counted(kind, name)
    return seen


def layer(seed: int, dtype: torch.dtype = torch.bfloat16) -> RowKv:
    memory = torch.randn(7, 2, KV_HEADS, TOKENS * DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return RowKv.of(memory[:, 0], memory[:, 1], DIM, TOKENS)


def call(
    rows: tuple[range, ...], tables: tuple[BlockTable, ...], positions: list[int], dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, AttentionMetadata]:
    there = torch.tensor(positions)
    q = torch.randn(len(positions), HEADS, DIM, generator=torch.Generator().manual_seed(len(positions))).to(dtype)
    return q, AttentionMetadata(rows, tables, there, there)


def check(got: Partial, q: torch.Tensor, kv: RowKv, metadata: AttentionMetadata, tolerance: float = 2e-2) -> None:
    out, lse = got
    assert out.dtype == lse.dtype == torch.float32
    parts = [
        micro_attention(q[r.start : r.stop], kv.k, kv.v, table, metadata.positions[r.start : r.stop], SCALE)
        for r, table in zip(metadata.rows, metadata.block_tables, strict=True)
    ]
    for found, wanted in zip((out, lse), map(torch.cat, zip(*parts, strict=True)), strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


TAKEN = {
    "decode": ((range(1), range(1, 2)), (LOCAL, WITH_GAPS), [44, 69]),
    "a chunk": ((range(9),), (LOCAL,), [*range(36, 45)]),
    "a chunk and decodes": (
        (range(1), range(1, 10), range(10, 11)), (WITH_GAPS, LOCAL, LENT), [69, *range(36, 45), 900]
    ),
    "for peers": ((range(3), range(3, 4)), (LENT, WITH_GAPS), [90, 91, 92, 4000]),
    "the same rows over two spans": ((range(3), range(3), range(3, 3)), (LENT, WITH_GAPS, LOCAL), [90, 91, 92]),
    "not all rows": ((range(2, 4),), (LOCAL,), [0, 0, 43, 44, 0]),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
def test_a_call_that_a_library_takes(backend: LibraryBackend, calls: Counter[str], case: str) -> None:
    q, metadata = call(*TAKEN[case])
    for seed in (1, 2):  # layers share a plan
        kv = layer(seed)
        check(backend.attend(q, kv, metadata, SCALE), q, kv, metadata)
    assert calls == {"__init__": 1, "run": 2}


OURS = {
    "a row that sees some keys": ((range(1), range(1, 2)), (LOCAL, WITH_GAPS), [44, 68]),
    "masks of two kinds": ((range(3), range(3, 5)), (LENT, LOCAL), [90, 91, 92, 43, 44]),
    "a span that is gone": ((range(3), range(1)), (LENT, BlockTable((), (), 64, TOKENS)), [90, 91, 92]),
}


@pytest.mark.parametrize("case", OURS)
def test_a_call_of_another_mask_is_ours(backend: LibraryBackend, calls: Counter[str], case: str) -> None:
    kv, (q, metadata) = layer(1), call(*OURS[case])
    check(backend.attend(q, kv, metadata, SCALE), q, kv, metadata)
    assert not calls


@pytest.mark.parametrize("what", ["window", "ALiBi", "float32", "positions on the device only", "no rows"])
def test_what_no_library_takes_is_ours(backend: LibraryBackend, calls: Counter[str], what: str) -> None:
    dtype = torch.float32 if what == "float32" else torch.bfloat16
    kv, (q, metadata) = layer(1, dtype), call(*TAKEN["decode"], dtype)
    if what == "no rows":
        metadata = AttentionMetadata((), (), metadata.positions, metadata.positions)
    if what == "positions on the device only":
        metadata = AttentionMetadata(metadata.rows, metadata.block_tables, metadata.positions)
    options = 9 if what == "window" else None, torch.ones(HEADS) if what == "ALiBi" else None
    found = backend.attend(q, kv, metadata, SCALE, *options)
    again = AttentionMetadata(metadata.rows, metadata.block_tables, metadata.positions)
    for one, other in zip(found, TritonBackend().attend(q, kv, again, SCALE, *options), strict=True):
        assert torch.equal(one, other)
    assert not calls


def test_queries_may_lie_anyhow(backend: LibraryBackend, calls: Counter[str]) -> None:
    kv, (q, metadata) = layer(1), call(*TAKEN["decode"])
    apart = torch.cat((q, torch.full_like(q, torch.nan)), 1)[:, :HEADS]
    for one, other in zip(
        backend.attend(q, kv, metadata, SCALE), backend.attend(apart, kv, metadata, SCALE), strict=True
    ):
        assert torch.equal(one, other)
    assert calls["run"] == 2


def test_threads_have_plans_of_their_own(backend: LibraryBackend) -> None:
    def serve(seed: int) -> None:
        for case in TAKEN.values():
            q, metadata = call(*case)
            kv = layer(seed)
            check(backend.attend(q, kv, metadata, SCALE), q, kv, metadata)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(serve, seed) for seed in range(4)]:
            done.result()


def test_a_workspace_is_of_one_plan_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is back when nobody has the step's metadata any more, and another stream gets another one."""
    documented.install(monkeypatch)
    made: list[torch.Tensor] = []
    take = Workspaces.take

    def taken(self: Workspaces, device: torch.device, queue: int) -> torch.Tensor:
        made.append(take(self, device, queue))
        return made[-1]

    monkeypatch.setattr(Workspaces, "take", taken)
    backend, kv = LibraryBackend("flashinfer"), layer(1)
    steps = []
    for case in ("decode", "a chunk"):
        q, metadata = call(*TAKEN[case])
        backend.attend(q, kv, metadata, SCALE)
        steps.append(metadata)
    assert made[0].data_ptr() != made[1].data_ptr()
    del metadata, steps[0]
    gc.collect()
    q, metadata = call(*TAKEN["decode"])
    backend.attend(q, kv, metadata, SCALE)
    assert made[2].data_ptr() == made[0].data_ptr()
    del metadata
    gc.collect()
    monkeypatch.setattr(flash_infer, "queue_of", lambda _device: 7)
    q, metadata = call(*TAKEN["decode"])
    backend.attend(q, kv, metadata, SCALE)
    assert made[3].data_ptr() not in {one.data_ptr() for one in made[:3]}


@pytest.mark.parametrize("windows", [(None,), (None, 7)])
def test_a_warm_start_calls_the_library_in_every_way(
    backend: LibraryBackend, calls: Counter[str], monkeypatch: pytest.MonkeyPatch, windows: tuple[int | None, ...]
) -> None:
    monkeypatch.setattr(TritonBackend, "warm_up", lambda *_: 5)
    with capture_logs() as logs:
        assert backend.warm_up(HEADS, layer(1), torch.bfloat16, windows) == 8
    assert calls == {"__init__": 3, "run": 3}
    assert [line["event"] for line in logs] == ([] if windows == (None,) else ["layers with windows are triton's"])


def test_a_start_ends_where_the_library_is_not_for_the_model(
    backend: LibraryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TritonBackend, "warm_up", lambda *_: 5)
    with pytest.raises(ConfigError, match=r"is not for 4/2x64 P16 float32 float32 \(use --attention-backend triton\)"):
        backend.warm_up(HEADS, layer(1, torch.float32), torch.float32, (None,))


def test_a_start_ends_where_the_library_fails(backend: LibraryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonBackend, "warm_up", lambda *_: 5)

    def changed(*_arguments: Any, **_options: Any) -> Any:
        raise TypeError("unexpected keyword argument 'causal'")

    for kind in (documented.BatchPrefillWithPagedKVCacheWrapper, documented.BatchDecodeWithPagedKVCacheWrapper):
        monkeypatch.setattr(kind, "plan", changed)
    monkeypatch.setattr(documented.FLASH_ATTENTION_3, "get_scheduler_metadata", changed)
    with pytest.raises(
        ConfigError, match=r"fails over 4/2x64 .*: TypeError: unexpected keyword argument 'causal' \(use"
    ):
        backend.warm_up(HEADS, layer(1), torch.bfloat16, (None,))


def test_steps_are_no_graphs(backend: LibraryBackend) -> None:
    assert not backend.static_keys and TritonBackend.static_keys
    assert backend.name in LIBRARIES
