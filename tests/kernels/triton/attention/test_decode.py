"""The decode templates against the float64 reference, over pools and buffers full of NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from distkv.kernels import AttentionMetadata, BlockTable, Partial
from distkv.kernels.attention import reference
from tests.kernels.layers import poisoned_pool
from tests.kernels.triton.types import of_all_types
from tests.lanes import rest_is_slow

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import DecodePlan, decode_plan
from distkv.kernels.triton.attention.templates import Config, Shape, Template, heuristic
from distkv.kernels.triton.metadata import device_metadata

NUM_SMS = {Template.ONE_PASS: 1, Template.SPLIT: 30, Template.DEEP_SPLIT: 9999}
"""So many that rows of some hundred keys are divided in this way."""


class Call:
    """Rows of one pool: each of `lengths` is an entry of one row, whose query is the entry's last key or later."""

    def __init__(
        self,
        lengths: list[int],
        device: torch.device,
        *,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 32,
        block_tokens: int = 16,
        q_dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        first_block: int = 0,
        gap_blocks: int = 0,
    ) -> None:
        numbers = torch.Generator().manual_seed(0)
        counts = [-(-keys // block_tokens) for keys in lengths]
        slots = iter(torch.randperm(sum(counts) + 3, generator=numbers).tolist())
        self.blocks = []
        for keys, count in zip(lengths, counts, strict=True):
            starts = [block_tokens * (first_block + i + gap_blocks * (i > count // 2)) for i in range(count)]
            end = starts[-1] + keys - (count - 1) * block_tokens if starts else 0
            self.blocks.append(BlockTable(tuple(next(slots) for _ in starts), tuple(starts), end, block_tokens))
        pools = [
            poisoned_pool(sum(counts) + 3, kv_heads, block_tokens, dim, blocks, torch.float32, seed)
            for seed, blocks in enumerate(self.blocks)
        ]
        self.k, self.v = (
            torch.stack(half).nan_to_num(-torch.inf).amax(0).masked_fill_(torch.stack(half).isnan().all(0), torch.nan)
            for half in zip(*pools, strict=True)
        )
        self.k, self.v = (half.to(kv_dtype or q_dtype) for half in (self.k, self.v))
        self.positions = torch.tensor([max(blocks.num_keys - 1, 0) for blocks in self.blocks])
        self.q = torch.randn(len(lengths), heads, dim, generator=numbers).to(q_dtype)
        self.scale, self.device = dim**-0.5, device
        rows = tuple(range(row, row + 1) for row in range(len(lengths)))
        self.metadata = device_metadata(AttentionMetadata(rows, tuple(self.blocks), self.positions.to(device)), device)

    def plan(self, template: Template, config: Config | None = None, window: int | None = None) -> DecodePlan:
        shape = Shape.of(self.q, self.k)
        config = config or Config(16, *[getattr(heuristic(shape), f) for f in ("num_warps", "num_stages")], 3)
        plan = decode_plan(self.metadata, np.arange(len(self.q)), shape, config, NUM_SMS[template], window)
        assert plan.template is template
        return plan

    def run(self, plan: DecodePlan, window: int | None = None, alibi: Tensor | None = None) -> Partial:
        rows = len(self.q) + plan.num_parts
        out = torch.full((rows, *self.q.shape[1:]), torch.nan, device=self.device)
        lse = torch.full((rows, self.q.shape[1]), torch.nan, device=self.device)
        q, k, v = (tensor.to(self.device) for tensor in (self.q, self.k, self.v))
        slopes = None if alibi is None else alibi.to(self.device)
        decode_attention(q, k, v, self.metadata, plan, out, lse, self.scale, window, slopes)
        return out[: len(self.q)].cpu(), lse[: len(self.q)].cpu()

    def check(self, partial: Partial, tolerance: float, window: int | None = None, alibi: Tensor | None = None) -> None:
        k, v = self.k.float(), self.v.float()
        for row, blocks in enumerate(self.blocks):
            expected = reference.micro_attention(
                self.q[row : row + 1], k, v, blocks, self.positions[row : row + 1], self.scale, window, alibi
            )
            for got, wanted in zip(partial, expected, strict=True):
                torch.testing.assert_close(got[row].double(), wanted[0], atol=tolerance, rtol=tolerance)


def check(
    call: Call, template: Template, tolerance: float = 2e-6, window: int | None = None, **options: Tensor
) -> None:
    call.check(call.run(call.plan(template, window=window), window, **options), tolerance, window, **options)


@pytest.mark.parametrize("template", Template)
def test_rows_of_mixed_lengths_in_one_launch(device: torch.device, template: Template) -> None:
    check(Call([1, 140, 0, 65, 16], device), template)


@pytest.mark.parametrize("template", Template)
@pytest.mark.parametrize("window", [None, 90])
def test_gaps_far_positions_and_alibi(device: torch.device, template: Template, window: int | None) -> None:
    call = Call([150, 70], device, first_block=1 << 36, gap_blocks=2)
    check(call, template, window=window)
    check(call, template, 4e-6, window=window, alibi=torch.tensor([0.5, 0.25, 0.125, 0.0625]))


@pytest.mark.parametrize("template", [Template.SPLIT, Template.DEEP_SPLIT])
def test_a_plan_serves_every_layer(device: torch.device, template: Template) -> None:
    call = Call([140, 90, 3], device)
    plan = call.plan(template)
    first, second = call.run(plan), call.run(plan)
    assert not plan.counters.any()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@of_all_types
def test_types(device: torch.device, q_dtype: torch.dtype, kv_dtype: torch.dtype, tolerance: float) -> None:
    call = Call([100, 20], device, dim=64, q_dtype=q_dtype, kv_dtype=kv_dtype)
    check(call, Template.SPLIT, tolerance)
    assert call.run(call.plan(Template.SPLIT))[0].isfinite().all()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_tokens"),
    [(20, 1, 80, 32), (1, 1, 256, 48), (3, 3, 96, 7), (6, 3, 34, 1), (8, 2, 128, 64)],
)
def test_shapes(device: torch.device, heads: int, kv_heads: int, dim: int, block_tokens: int) -> None:
    call = Call([100, 3], device, heads=heads, kv_heads=kv_heads, dim=dim, block_tokens=block_tokens)
    check(call, Template.SPLIT)


@pytest.mark.parametrize("heads", [64, 71])
def test_many_heads_of_one_kv_head(device: torch.device, heads: int) -> None:
    """As many as a tile of 16-bit products takes, and more."""
    check(Call([70], device, heads=heads, kv_heads=1, dim=64, q_dtype=torch.float16), Template.SPLIT, 5e-4)


@pytest.mark.parametrize("q_dtype", [torch.float32, torch.float16])
def test_the_tiles_of_the_heuristic(device: torch.device, q_dtype: torch.dtype) -> None:
    call = Call([150, 20], device, dim=64, q_dtype=q_dtype)
    plan = call.plan(Template.ONE_PASS, replace(heuristic(Shape.of(call.q, call.k)), programs_per_sm=1))
    call.check(call.run(plan), 2e-6 if q_dtype == torch.float32 else 5e-4)


def test_rows_of_a_wider_projection(device: torch.device) -> None:
    call = Call([40, 90], device)
    call.q = torch.cat((call.q, torch.full_like(call.q, torch.nan)), 1)[:, :4]
    assert not call.q.is_contiguous()
    check(call, Template.ONE_PASS)


@pytest.mark.parametrize("template", Template)
@pytest.mark.parametrize("resident", rest_is_slow([2, 1, 50]))
def test_a_persistent_grid_walks_through_all_items(device: torch.device, template: Template, resident: int) -> None:
    """Fewer programs than items, as many, and more; counters are 0 again after each."""
    call = Call([1, 140, 0, 65, 16], device)
    config = Config(16, heuristic(Shape.of(call.q, call.k)).num_warps, 3, 3, resident)
    keys = {Template.ONE_PASS: 140, Template.SPLIT: 48, Template.DEEP_SPLIT: 32}[template]
    division = template, keys
    plan = decode_plan(call.metadata, np.arange(5), Shape.of(call.q, call.k), config, 3, None, division)
    assert plan.grid == min(3 * resident, plan.num_programs)
    first, second = call.run(plan), call.run(plan)
    assert not plan.counters.any()
    call.check(first, 2e-6)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_a_persistent_grid_computes_the_same(device: torch.device) -> None:
    """To the last bit, for the same division: whoever ends last merges the parts in their order."""
    call = Call([100, 33, 7], device, dim=64, q_dtype=torch.bfloat16)
    shape, found = Shape.of(call.q, call.k), []
    for resident in (0, 1):
        config = Config(16, heuristic(shape).num_warps, 3, 3, resident)
        found.append(call.run(decode_plan(call.metadata, np.arange(3), shape, config, 2, 20, (Template.SPLIT, 32)), 20))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
