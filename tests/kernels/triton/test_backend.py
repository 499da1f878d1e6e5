"""What the backend decides before it launches; its results are checked with those of all backends."""

from __future__ import annotations

import pytest
import torch

from distkv.kernels import AttentionMetadata, BlockTable
from distkv.kernels.attention import reference
from tests.kernels.layers import layer_of

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.attention.decode_plan import DecodePlan
from distkv.kernels.triton.attention.templates import Config, Shape
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.metadata import device_metadata
from distkv.kernels.triton.tuning.tuned_table import Case, Measured, TunedTable

BLOCKS = BlockTable((3, 0, 2), (0, 16, 32), 45, 16)


def plans_of(metadata: AttentionMetadata, device: torch.device) -> list[DecodePlan]:
    return [plan for plan in device_metadata(metadata, device).plans.values() if isinstance(plan, DecodePlan)]


def test_few_rows_decode_and_many_prefill_in_one_call(device: torch.device) -> None:
    backend = TritonBackend()
    k, v = (torch.randn(4, 2, 16, 32, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    q = torch.randn(14, 4, 32, generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([44, 3, 44, 7, 0, 8, 9, 10, 11, 12, 40, 41, 42, 43])
    rows = (range(0, 1), range(4, 10), range(1, 3), range(5, 5), range(5, 14), range(10, 13))
    blocks = (BLOCKS, BLOCKS, BlockTable((1,), (0,), 9, 16), BLOCKS, BlockTable((1, 3), (0, 32), 48, 16), BLOCKS)
    metadata = AttentionMetadata(rows, blocks, positions.to(device))
    out, lse = backend.attend(q.to(device), layer_of(backend, k, v), metadata, 0.2, 30)
    parts = [
        reference.micro_attention(q[r.start : r.stop], k, v, b, positions[r.start : r.stop], 0.2, 30)
        for r, b in zip(rows, blocks, strict=True)
    ]
    torch.testing.assert_close(out.double().cpu(), torch.cat([part for part, _ in parts]), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(lse.double().cpu(), torch.cat([part for _, part in parts]), atol=2e-6, rtol=2e-6)
    assert [plan.num_items for plan in plans_of(metadata, device)] == [1 + 2]


def test_layers_share_plans_by_window(device: torch.device) -> None:
    backend = TritonBackend()
    kv = layer_of(backend, *torch.randn(2, 4, 2, 16, 32))
    metadata = AttentionMetadata((range(1),), (BLOCKS,), torch.tensor([44], device=device))
    q = torch.randn(1, 4, 32, device=device)
    for window in (None, 8, None, 8):
        backend.attend(q, kv, metadata, 0.2, window)
    assert len(plans_of(metadata, device)) == 2


def test_nothing_to_attend_to(device: torch.device) -> None:
    backend = TritonBackend()
    kv = layer_of(backend, *torch.randn(2, 4, 2, 16, 32))
    q = torch.randn(0, 4, 32, device=device)
    out, lse = backend.attend(q, kv, AttentionMetadata((), (), torch.zeros(0, dtype=torch.int64, device=device)), 0.2)
    assert out.shape == (0, 4, 32)
    assert lse.shape == (0, 4)


def test_queries_may_lie_anyhow(device: torch.device) -> None:
    backend = TritonBackend()
    kv = layer_of(backend, *torch.randn(2, 4, 2, 16, 32))
    metadata = AttentionMetadata((range(2),), (BLOCKS,), torch.tensor([44, 20], device=device))
    q = torch.randn(2, 4, 32, device=device)
    apart = q.transpose(1, 2).contiguous().transpose(1, 2)
    for one, other in zip(backend.attend(q, kv, metadata, 0.2), backend.attend(apart, kv, metadata, 0.2), strict=True):
        assert torch.equal(one, other)


def test_measured_configs_are_used(device: torch.device) -> None:
    shape = Shape(4, 2, 32, 16, "float32", "float32")
    config = Config(tile_keys=32, num_warps=2, num_stages=2, programs_per_sm=1)
    backend = TritonBackend(TunedTable([Measured(Case(shape.key, 32, 1), config, 0.5)]))
    metadata = AttentionMetadata((range(1),), (BLOCKS,), torch.tensor([44], device=device))
    kv = layer_of(backend, *torch.randn(2, 4, 2, 16, 32))
    backend.attend(torch.randn(1, 4, 32, device=device), kv, metadata, 0.2)
    assert [plan.config for plan in plans_of(metadata, device)] == [config]
