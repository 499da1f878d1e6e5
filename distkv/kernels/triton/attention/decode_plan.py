"""The division of a call's decode rows into work items, made once per step and window."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.kernels.triton.attention.templates import Config, Shape, Template, divide, grid_of
from distkv.kernels.triton.casts import DOT_TYPES
from distkv.kernels.triton.metadata import Column, DeviceMetadata, to_device

_OF_ENTRY = [Column.FIRST_BLOCK, Column.NUM_BLOCKS, Column.NUM_KEYS, Column.FIRST_POSITION, Column.GAPS]


class Item(IntEnum):
    """What DecodePlan.items says of an item, a query row and a part of its keys, after what `_OF_ENTRY` names."""

    ROW = 5  # in q and positions
    OUT_ROW = 6
    PART = 7  # which part of the row's keys
    NUM_PARTS = 8  # of the row
    FIRST_PART = 9  # row of out where the row's partials begin
    COUNTER = 10  # which of `counters` the row's programs use
    KEYS = 11  # of a part, the last one of a row excepted


ITEM_NUMBERS = len(_OF_ENTRY) + len(Item)


@dataclass(frozen=True)
class DecodePlan:
    """Work items of one launch.

    items: int64 [I, 12], see Item. split_rows: int64 [S, 3]: OUT_ROW, FIRST_PART and NUM_PARTS of divided rows.
    counters: int32, 0 between launches, one per split row and program of an item: how many programs have ended.
    num_parts: rows of scratch behind the results. num_programs: of all items; grid: of the launch, as many or fewer,
    which walk through them. heads, constants: what kernels are
    compiled for, by the names of their arguments; `heads` of both kernels.
    """

    shape: Shape
    config: Config
    template: Template
    num_items: int
    num_split_rows: int
    num_parts: int
    items: Tensor
    split_rows: Tensor
    counters: Tensor
    num_programs: int
    grid: int
    heads: dict[str, Any]
    constants: dict[str, Any]


def decode_plan(
    metadata: DeviceMetadata,
    entries: NDArray[np.intp],
    shape: Shape,
    config: Config,
    num_sms: int,
    window: int | None = None,
    division: tuple[Template, int] | None = None,
) -> DecodePlan:
    """Every row of `entries`, which are indices into the metadata and have at least one row. division: the template and
    the keys of an item; None chooses."""
    host = metadata.host[entries]
    counts = host[:, Column.NUM_ROWS]
    rows = np.repeat(host, counts, axis=0)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Positions lie on the device: what a row sees of the keys that exist is known there only.
    keys = rows[:, Column.NUM_KEYS] if window is None else np.minimum(rows[:, Column.NUM_KEYS], window)
    template, keys_per_item = division or divide(keys, shape, config, num_sms)

    first_rows = np.column_stack(
        [rows[:, _OF_ENTRY], rows[:, Column.FIRST_ROW] + place, rows[:, Column.OUT_ROW] + place]
    )
    items, split_rows = work_items(first_rows, keys, keys_per_item, metadata.num_out_rows)
    num_counters = len(split_rows) * shape.programs_per_item
    packed = np.concatenate([items.ravel(), split_rows.ravel(), np.zeros(-(-num_counters // 2), np.int64)])
    there = to_device(packed, metadata.slots.device)
    return DecodePlan(
        shape=shape,
        config=config,
        template=template,
        num_items=len(items),
        num_split_rows=len(split_rows),
        num_parts=int(split_rows[:, 2].sum()),
        items=there[: items.size].view(items.shape),
        split_rows=there[items.size : items.size + split_rows.size].view(split_rows.shape),
        counters=there[items.size + split_rows.size :].view(torch.int32),
        num_programs=len(items) * shape.programs_per_item,
        grid=grid_of(len(items), shape, config, num_sms),
        heads=heads_of(shape),
        constants=constants_of(shape, config, template),
    )


def work_items(
    rows: NDArray[np.int64], keys: NDArray[np.int64], keys_per_item: int, first_scratch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Items [I, 12], the long ones first, for what ends last should be short; and split_rows, see DecodePlan.

    rows: [R, 7], of each what Item says before PART. keys: [R], how many it may see. first_scratch: the row of out
    where partials begin.
    """
    num_parts = np.maximum(-(-keys // keys_per_item), 1)
    is_split = num_parts > 1
    scratch = np.where(is_split, num_parts, 0)
    columns = [np.zeros_like(keys), num_parts, first_scratch + np.cumsum(scratch) - scratch, np.cumsum(is_split) - 1]
    table = np.column_stack([rows, *columns, np.full_like(keys, keys_per_item)])
    items = np.repeat(table, num_parts, axis=0)
    items[:, Item.PART] = np.arange(len(items)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    left = np.minimum(np.repeat(keys, num_parts) - items[:, Item.PART] * keys_per_item, keys_per_item)
    return items[np.argsort(-left, kind="stable")], table[is_split][:, [Item.OUT_ROW, Item.FIRST_PART, Item.NUM_PARTS]]


def heads_of(shape: Shape) -> dict[str, Any]:
    """DecodePlan.heads."""
    return dict(HEADS=shape.heads, D=shape.head_dim, DIM=shape.padded_dim)


def constants_of(shape: Shape, config: Config, template: Template) -> dict[str, Any]:
    """DecodePlan.constants."""
    return dict(
        KV_HEADS=shape.kv_heads,
        P=shape.block_tokens,
        HEAD_TILE=shape.head_tile,
        PROGRAMS=shape.programs_per_item,
        TILE=config.tile_keys,
        DOT=DOT_TYPES[shape.dot_dtype],
        FUSED=template is Template.SPLIT,
        MERGED_HEADS=shape.merged_heads,
        MERGED_PARTS=config.merged_parts(shape),
        STAGES=config.num_stages,
        PERSISTENT=config.resident > 0,
        num_warps=config.num_warps,
    )
