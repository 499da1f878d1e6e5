"""A tuning run: times the decode kernels on a device and fills a TunedTable."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from triton.testing import do_bench

from distkv.kernels.attention_metadata import AttentionMetadata
from distkv.kernels.block_table import BlockTable
from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import decode_plan
from distkv.kernels.triton.attention.templates import Config, Shape, count_sms
from distkv.kernels.triton.metadata import device_metadata
from distkv.kernels.triton.tuning.tuned_table import Case, TunedTable, best_of, candidates

CASES = ((1 << 10, 1), (8 << 10, 1), (32 << 10, 1), (128 << 10, 1), (1 << 10, 64), (4 << 10, 64), (32 << 10, 8))
"""Keys of a row and rows, that cover each template with few and many programs. In bfloat16, 8 KV heads of 128 numbers
take 1 GiB for the largest."""


def median_ms(run: Callable[[], object]) -> float:
    """Milliseconds by CUDA events, with a cold L2 cache."""
    return float(do_bench(run, warmup=5, rep=20, return_mode="median"))


def tune(
    table: TunedTable,
    shape: Shape,
    device: torch.device,
    cases: Iterable[tuple[int, int]] = CASES,
    *,
    configs: Iterable[Config] | None = None,
    timer: Callable[[Callable[[], object]], float] = median_ms,
) -> None:
    """Measure `configs`, by default `candidates(shape)`, for every (keys of a row, rows) of `cases` into `table`.

    The pool of a case holds every key of every row: keys · rows · Hkv · D numbers of K, and of V.
    """
    for keys, rows in cases:
        measured = best_of(
            Case(shape.key, keys, rows), configs or candidates(shape), _decode_of(shape, keys, rows, device), timer
        )
        if measured is not None:
            table.put(measured)


def _decode_of(shape: Shape, keys: int, rows: int, device: torch.device) -> Callable[[Config], Callable[[], None]]:
    """What runs the kernels with a config over rows of `keys` keys, in blocks that lie in random order."""
    tokens = shape.block_tokens
    blocks = -(-keys // tokens)
    places = torch.randperm(rows * blocks, generator=torch.Generator().manual_seed(0)).view(rows, blocks)
    starts = tuple(range(0, blocks * tokens, tokens))
    kv_shape = (2, rows * blocks, shape.kv_heads, tokens, shape.head_dim)
    k, v = torch.randn(kv_shape, dtype=torch.bfloat16, device=device).to(getattr(torch, shape.kv_dtype))
    q = torch.randn(rows, shape.heads, shape.head_dim, device=device).to(getattr(torch, shape.q_dtype))
    metadata = device_metadata(
        AttentionMetadata(
            tuple(range(row, row + 1) for row in range(rows)),
            tuple(BlockTable(tuple(slots), starts, keys, tokens) for slots in places.tolist()),
            torch.full((rows,), keys - 1),
        ),
        device,
    )

    def runner(config: Config) -> Callable[[], None]:
        plan = decode_plan(metadata, np.arange(rows), shape, config, count_sms(device))
        out = torch.empty(rows + plan.num_parts, shape.heads, shape.head_dim, device=device)
        lse = torch.empty(rows + plan.num_parts, shape.heads, device=device)
        return lambda: decode_attention(q, k, v, metadata, plan, out, lse, shape.head_dim**-0.5)

    return runner
