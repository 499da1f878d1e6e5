"""A tuning run: times the kernels of decode and prefill on a device and fills a TunedTable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import numpy as np
import torch
import triton

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.block_table import BlockTable
from distkv.kernels.attention.layout import RowKv
from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import decode_plan
from distkv.kernels.triton.attention.prefill import prefill_attention
from distkv.kernels.triton.attention.prefill_tiles import Tiles
from distkv.kernels.triton.attention.prefill_tiles import candidates as candidate_tiles
from distkv.kernels.triton.attention.templates import Config, Shape, count_sms
from distkv.kernels.triton.metadata import device_metadata
from distkv.kernels.triton.tuning.tuned_table import (
    Case,
    MeasuredTiles,
    TunedTable,
    best_of,
    candidates,
    fastest,
    kernel_of,
)

T = TypeVar("T")

CASES = (
    *((keys << 10, 1) for keys in (1, 8, 32, 128)),
    (2 << 10, 8), (32 << 10, 8), (8 << 10, 16), (2 << 10, 32), (1 << 10, 64), (4 << 10, 64),
)  # fmt: skip
"""Keys of a row and rows, that cover each template with few and many programs. In bfloat16, 8 KV heads of 128 numbers
take 1 GiB of each layer for the largest."""


PREFILL_CASES = ((8 << 10, 8 << 10), (2 << 10, 2 << 10), (32 << 10, 512))
"""Keys of a sequence and rows, its last ones: a whole prompt, a short one, a chunk of a long one."""

_COMPILED_AT_ONCE = 8
"""Kernels: most of the time the compiler needs no Python."""


def layer_bytes(shape: Shape, keys: int, rows: int) -> int:
    """Of K and V of one layer in the pool of a case."""
    blocks = rows * -(-keys // shape.block_tokens)
    return 2 * blocks * shape.kv_heads * shape.block_tokens * shape.head_dim * _dtype(shape.kv_dtype).itemsize


def tune(
    table: TunedTable,
    shape: Shape,
    device: torch.device,
    layers: int,
    cases: Iterable[tuple[int, int]] = CASES,
    *,
    timer: Callable[[Callable[[], object]], float],
    configs: Iterable[Config] | None = None,
    ends_s: float = math.inf,
) -> None:
    """Measure `configs`, by default `candidates(shape)`, for every (keys of a row, rows) of `cases` into `table`.

    ends_s: on the monotonic clock, when no config but the first of a case is begun any more.

    The pool of a case holds every key of every row in rBlocks of so many layers, `layer_bytes` for each. timer: runs
    what it is given and returns its milliseconds. That goes over all layers: what one leaves in a cache is no use to
    the next, and what a layer reads of an rBlock lies as far apart as in a serving instance.
    """
    for keys, rows in cases:
        given, runner = list(configs or candidates(shape)), _decode_of(shape, keys, rows, device, layers)
        # How many programs there are is no part of a kernel.
        _compile({kernel_of(config): config for config in reversed(given)}.values(), runner, device)
        measured = best_of(Case(shape.key, keys, rows), _until(ends_s, given), runner, lambda run: timer(run) / layers)
        if measured is not None:
            table.put(measured)


def tune_prefill(
    table: TunedTable,
    shape: Shape,
    device: torch.device,
    layers: int,
    cases: Iterable[tuple[int, int]] = PREFILL_CASES,
    *,
    timer: Callable[[Callable[[], object]], float],
    choices: Iterable[Tiles] | None = None,
    ends_s: float = math.inf,
) -> None:
    """As `tune`, for tiles of prefill, by default `prefill_tiles.candidates(shape)`."""
    for keys, rows in cases:
        case = Case(shape.key, keys, rows)
        given = list(candidate_tiles(shape) if choices is None else choices)
        runner = _prefill_of(shape, keys, rows, device, layers)
        _compile(given, runner, device)
        best = fastest(case, _until(ends_s, given), runner, lambda run: timer(run) / layers)
        if best is not None:
            table.put_tiles(MeasuredTiles(case, *best))


def _until(ends_s: float, choices: Sequence[T]) -> Iterator[T]:
    """Those that are begun before, and the first."""
    for index, choice in enumerate(choices):
        if index and time.monotonic() > ends_s:
            return
        yield choice


def _compile(choices: Iterable[T], runner: Callable[[T], Callable[[], None]], device: torch.device) -> None:
    """Run each once, many at a time, so that none has to be compiled alone; one that fails does so again when it is
    measured. Triton's interpreter compiles nothing."""
    if device.type != "cuda":
        return

    def run(choice: T) -> None:
        with torch.cuda.device(device), suppress(triton.TritonError, RuntimeError):
            runner(choice)()

    with ThreadPoolExecutor(_COMPILED_AT_ONCE) as threads:
        list(threads.map(run, choices))
    torch.cuda.synchronize(device)


def _decode_of(
    shape: Shape, keys: int, rows: int, device: torch.device, layers: int
) -> Callable[[Config], Callable[[], None]]:
    """What runs the kernels with a config over rows of `keys` keys, in every layer of rBlocks in random order."""
    kvs, tables = _layers_of(shape, keys, rows, device, layers)
    q = torch.randn(rows, shape.heads, shape.head_dim, device=device).to(_dtype(shape.q_dtype))
    ranges = tuple(range(row, row + 1) for row in range(rows))
    metadata = device_metadata(AttentionMetadata(ranges, tables, torch.full((rows,), keys - 1)), device)

    def runner(config: Config) -> Callable[[], None]:
        plan = decode_plan(metadata, np.arange(rows), shape, config, count_sms(device))
        out = torch.empty(rows + plan.num_parts, shape.heads, shape.head_dim, device=device)
        lse = torch.empty(rows + plan.num_parts, shape.heads, device=device)

        def run() -> None:
            for kv in kvs:
                decode_attention(q, kv.k, kv.v, metadata, plan, out, lse, shape.head_dim**-0.5)

        return run

    return runner


def _prefill_of(
    shape: Shape, keys: int, rows: int, device: torch.device, layers: int
) -> Callable[[Tiles], Callable[[], None]]:
    """What runs the kernel with tiles, for the last rows of a sequence, in every layer of rBlocks in random order."""
    kvs, tables = _layers_of(shape, keys, 1, device, layers)
    q = torch.randn(rows, shape.heads, shape.head_dim, device=device).to(_dtype(shape.q_dtype))
    metadata = device_metadata(AttentionMetadata((range(rows),), tables, torch.arange(keys - rows, keys)), device)
    entries = torch.zeros(1, dtype=torch.int32, device=device)
    out, lse = torch.empty(q.shape, device=device), torch.empty(q.shape[:2], device=device)
    scale = shape.head_dim**-0.5

    def runner(tiles: Tiles) -> Callable[[], None]:
        def run() -> None:
            for kv in kvs:
                prefill_attention(q, kv.k, kv.v, metadata, entries, rows, out, lse, scale, tiles=tiles)

        return run

    return runner


def _layers_of(
    shape: Shape, keys: int, sequences: int, device: torch.device, layers: int
) -> tuple[list[RowKv], tuple[BlockTable, ...]]:
    """The layers of a pool, and block tables of sequences of so many keys each."""
    tokens = shape.block_tokens
    blocks = -(-keys // tokens)
    places = torch.randperm(sequences * blocks, generator=torch.Generator().manual_seed(0)).view(sequences, blocks)
    starts = tuple(range(0, blocks * tokens, tokens))
    pool = _noise(
        (sequences * blocks, layers, 2, shape.kv_heads, tokens * shape.head_dim), _dtype(shape.kv_dtype), device
    )
    kvs = [RowKv.of(pool[:, layer, 0], pool[:, layer, 1], shape.head_dim, tokens) for layer in range(layers)]
    return kvs, tuple(BlockTable(tuple(slots), starts, keys, tokens) for slots in places.tolist())


def _noise(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers, made where they lie: a pool has no room for another of a wider type beside it."""
    if dtype.itemsize > 1:
        return torch.empty(size, dtype=dtype, device=device).normal_()
    noise = torch.empty(size, dtype=dtype, device=device)
    for block in noise:
        block.copy_(torch.randn(size[1:], device=device))
    return noise


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
