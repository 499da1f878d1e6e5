"""The first launch of every kernel of attention and merges that requests can reach: none compiles while somebody waits.

What a kernel is compiled for is the shape of heads, the types, the tiles of a config, the template, and whether there
is a window. How many rows and keys there are only decides which of these runs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import structlog
import torch
import triton

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.block_table import BlockTable
from distkv.kernels.attention.layout import LayerKv
from distkv.kernels.attention.merge import empty_partial
from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import decode_plan
from distkv.kernels.triton.attention.prefill import prefill_attention
from distkv.kernels.triton.attention.prefill_tiles import FEW_PAIRS, Tiles
from distkv.kernels.triton.attention.templates import Config, Shape, Template, count_sms
from distkv.kernels.triton.merge import WIDTHS, merge_partials
from distkv.kernels.triton.metadata import DeviceMetadata, device_metadata
from distkv.kernels.triton.tuning.tuned_table import TunedTable

_DIVIDED = {Template.ONE_PASS: 2, Template.SPLIT: 1, Template.DEEP_SPLIT: 1}
"""Blocks of an item where a row has two: it is divided by the templates that divide."""


def launch_attention(
    tuned: TunedTable, num_heads: int, kv: LayerKv, dtype: torch.dtype, windows: Collection[int | None]
) -> int:
    """For queries of `dtype` with num_heads heads over such layers. windows: of all layers. It reads the first block of
    `kv`, whatever is in it, and writes to no block. A measured config that does not compile or fit here is left out of
    the table, with a warning. Returns how many launches that took."""
    q = torch.zeros(_most_rows(num_heads // kv.kv_heads), num_heads, kv.head_dim, dtype=dtype, device=kv.k.device)
    shape = Shape.of(q, kv.k)
    count = 0
    ready: set[Config] = set()
    while missing := {_compiled(config) for config in tuned.configs(shape)} - ready:
        for config in sorted(missing, key=str):
            try:
                count += _launch_decode(q[:1], kv, config)
                ready.add(config)
            except (triton.TritonError, RuntimeError) as error:
                if not tuned.leave_out(shape, config):
                    raise
                log = structlog.get_logger()
                log.warning("tuned config left out", shape=shape.key, config=str(config), reason=str(error))
    for rows in (1, len(q)):  # tiles are chosen by the rows of the longest entry
        count += _launch_prefill(q[:rows], kv, windows, None)
    for tiles in sorted(tuned.all_tiles(shape), key=str):
        try:
            count += _launch_prefill(q, kv, windows, tiles)
        except (triton.TritonError, RuntimeError) as error:
            tuned.leave_out_tiles(shape, tiles)
            log = structlog.get_logger()
            log.warning("tuned config left out", shape=shape.key, config=str(tiles), reason=str(error))
    out, lse = (x.to(q.device) for x in empty_partial(1, num_heads, kv.head_dim))
    for width in WIDTHS:
        merge_partials([(out, lse)] * width)
    return count + len(WIDTHS)


def _launch_prefill(q: torch.Tensor, kv: LayerKv, windows: Collection[int | None], tiles: Tiles | None) -> int:
    """Of all rows as one entry, with keys that are divided and not."""
    there, entries = _metadata(kv, len(q)), torch.zeros(1, dtype=torch.int32, device=q.device)
    out, lse = torch.empty_like(q, dtype=torch.float32), q.new_empty(q.shape[:2], dtype=torch.float32)
    kinds = {None if window is None else 1 for window in windows}
    for window in kinds:
        for splits in (1, 2):
            prefill_attention(
                q, kv.k, kv.v, there, entries, len(q), out, lse, kv.head_dim**-0.5, window, tiles=tiles, splits=splits
            )
    return 2 * len(kinds)


def _launch_decode(q: torch.Tensor, kv: LayerKv, config: Config) -> int:
    """Every template, of one row."""
    metadata, shape = _metadata(kv, 1), Shape.of(q, kv.k)
    for template, blocks in _DIVIDED.items():
        division = template, blocks * kv.block_tokens
        plan = decode_plan(metadata, np.arange(1), shape, config, count_sms(q.device), None, division)
        out = torch.empty(1 + plan.num_parts, *q.shape[1:], dtype=torch.float32, device=q.device)
        lse = torch.empty(out.shape[:2], dtype=torch.float32, device=q.device)
        decode_attention(q, kv.k, kv.v, metadata, plan, out, lse, kv.head_dim**-0.5)
    return len(_DIVIDED)


def _compiled(config: Config) -> Config:
    """The one of all that are compiled alike."""
    return replace(config, programs_per_sm=3 if config.programs_per_sm > 2 else 2, resident=min(config.resident, 1))


def _most_rows(group: int) -> int:
    """So many that they have more pairs than few of them."""
    return FEW_PAIRS // group + 1


def _metadata(kv: LayerKv, rows: int) -> DeviceMetadata:
    """One entry, over the first block twice."""
    tokens = kv.block_tokens
    table = BlockTable((0, 0), (0, tokens), 2 * tokens, tokens)
    positions = torch.full((rows,), 2 * tokens - 1, device=kv.k.device)
    return device_metadata(AttentionMetadata((range(rows),), (table,), positions), kv.k.device)
