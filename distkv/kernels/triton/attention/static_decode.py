"""Decode with a launch that does not depend on how many keys there are: see `kernels.static_decode`.

Work items are a table of fixed length on the device. Each program takes its share of all keys, so a number of rows has
a largest number of items, and those that a step does not need are nobody's. Where a row is seen by one program that
writes what the o-projection takes; partials of the others are merged into it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.kernels.attention.layout import LayerKv
from distkv.kernels.attention.static_decode import StaticInputs
from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import ITEM_NUMBERS, DecodePlan, constants_of, heads_of, work_items
from distkv.kernels.triton.attention.templates import (
    Config,
    Shape,
    Template,
    grid_of,
    keys_per_item,
    merges_fused,
    most_items,
)
from distkv.kernels.triton.metadata import Column, DeviceMetadata, to_device

_MANY = 2**31 - 1
"""Keys of an entry: its row's position bounds them."""


class TritonStaticDecode:
    """See StaticDecode. most_keys: that a row may see; it decides who merges."""

    def __init__(self, inputs: StaticInputs, shape: Shape, config: Config, num_sms: int, most_keys: int) -> None:
        rows, place = len(inputs.attended), inputs.attended.device
        self._inputs, self._shape, self._config, self._num_sms = inputs, shape, config, num_sms
        self._fused = merges_fused(most_keys, rows, shape, num_sms)
        self._num_items = most_items(rows, shape, config, num_sms)
        windows = sorted(set(inputs.windows), key=lambda window: window or 0)
        # Of each window, one after another: items, then rows that are split.
        self._windows = tuple(windows)
        self._numbers = torch.zeros(
            len(windows), self._num_items * ITEM_NUMBERS + rows * 3, dtype=torch.int64, device=place
        )
        self._plans = {window: self._plan_over(part) for window, part in zip(windows, self._numbers, strict=True)}
        self._metadata = DeviceMetadata(
            slots=inputs.tables,
            starts=inputs.tables,  # read where blocks do not follow each other; here they do
            entries=torch.empty(0, len(Column), dtype=torch.int64, device=place),
            positions=inputs.positions,
            host=np.empty((0, len(Column)), dtype=np.int64),
            num_out_rows=0,
            block_tokens=shape.block_tokens,
        )
        # Behind the results, if they go there, is scratch.
        self._first_scratch = rows if inputs.merged_elsewhere else 0
        length = self._first_scratch + self._num_items
        self._out = torch.zeros(length, shape.heads, shape.head_dim, dtype=torch.float32, device=place)
        self._lse = torch.zeros(length, shape.heads, dtype=torch.float32, device=place)
        self.partials = self._out[: self._first_scratch], self._lse[: self._first_scratch]

    def plan(self, places: NDArray[np.int64], first_positions: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        """See StaticDecode."""
        count = len(places)
        row = np.arange(count)
        rows = np.column_stack(
            [
                places,
                np.full(count, self._inputs.max_blocks),
                np.full(count, _MANY),
                first_positions,
                np.zeros(count, np.int64),
                row,
                row,
            ]
        )
        numbers = np.zeros(self._numbers.shape, np.int64)
        split = self._num_items * ITEM_NUMBERS
        for part, window in zip(numbers, self._windows, strict=True):
            seen = keys if window is None else np.minimum(keys, window)
            taken = keys_per_item(seen, self._fused, self._shape, self._config, self._num_sms)
            items, split_rows = work_items(rows, seen, taken, self._first_scratch)
            part[: items.size] = items.ravel()
            part[split : split + split_rows.size] = split_rows.ravel()
        self._numbers.copy_(to_device(numbers, self._numbers.device))

    def attend(self, q: Tensor, kv: LayerKv, scale: float, window: int | None) -> None:
        """See StaticDecode."""
        plan, into = self._plans[window], None if self._inputs.merged_elsewhere else self._inputs.attended
        decode_attention(q, kv.k, kv.v, self._metadata, plan, self._out, self._lse, scale, window, into=into)

    def _plan_over(self, numbers: Tensor) -> DecodePlan:
        """Over items and split rows that `plan` writes."""
        rows, end = len(self._inputs.attended), self._num_items * ITEM_NUMBERS
        template = Template.SPLIT if self._fused else Template.DEEP_SPLIT
        return DecodePlan(
            shape=self._shape,
            config=self._config,
            template=template,
            num_items=self._num_items,
            num_split_rows=rows,
            num_parts=self._num_items,
            items=numbers[:end].view(self._num_items, ITEM_NUMBERS),
            split_rows=numbers[end:].view(rows, 3),
            counters=torch.zeros(rows * self._shape.programs_per_item, dtype=torch.int32, device=numbers.device),
            num_programs=self._num_items * self._shape.programs_per_item,
            grid=grid_of(self._num_items, self._shape, self._config, self._num_sms),
            heads=heads_of(self._shape),
            constants=constants_of(self._shape, self._config, template),
        )
