"""The attention metadata of a call on the device: copied once per step, read by every layer's kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata


class Column(IntEnum):
    """What DeviceMetadata.entries says of an entry, an element of AttentionMetadata.rows and .block_tables."""

    FIRST_BLOCK = 0  # its first block in `slots` and `starts`
    NUM_BLOCKS = 1
    NUM_KEYS = 2  # how many keys exist: those at indices below; see BlockTable for "index"
    FIRST_ROW = 3  # its first query row, in q and positions
    NUM_ROWS = 4
    OUT_ROW = 5  # its first row in out and lse
    FIRST_POSITION = 6  # position of its first key, which `starts` counts from
    GAPS = 7  # positions between its first and last block that no block has; 0 means start of block i = i·P


@dataclass(frozen=True)
class DeviceMetadata:
    """AttentionMetadata as kernels read them. E entries, at least one, of B blocks in all.

    slots: int32 [B]. starts: int32 [B], position of each block's first key less the FIRST_POSITION of its entry.
    entries: int64 [E, len(Column)]; `host` holds the same numbers for decisions at launch. positions: int64 [N].
    num_out_rows: R, rows of all entries together. block_tokens: P. plans: what launches derive from it, once for all
    layers. It serves one stream at a time.

    The key at index i of an entry lies in slot slots[FIRST_BLOCK + i // P], place i % P, and has position
    FIRST_POSITION + starts[FIRST_BLOCK + i // P] + i % P. It exists if i < NUM_KEYS. Keys that a query sees are one
    range of indices, whose ends `keys_before` finds.
    """

    slots: Tensor
    starts: Tensor
    entries: Tensor
    positions: Tensor
    host: NDArray[np.int64]
    num_out_rows: int
    block_tokens: int
    plans: dict[Any, Any] = field(default_factory=dict)


def device_metadata(metadata: AttentionMetadata, device: torch.device) -> DeviceMetadata:
    """The metadata on `device`, made at the first call of a step and then kept in `metadata.prepared`."""
    found: DeviceMetadata | None = metadata.prepared.get("triton")
    if found is None:
        found = metadata.prepared["triton"] = _copied(metadata, device)
    return found


def to_device(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on `device`, ordered before the next kernels of the current stream; nothing waits for it."""
    host = torch.tensor(numbers)
    # Torch pins no tensor while it makes it of NumPy's numbers.
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _copied(metadata: AttentionMetadata, device: torch.device) -> DeviceMetadata:
    host = _entries(metadata)
    num_blocks = int(host[:, Column.NUM_BLOCKS].sum())
    numbers = np.empty(2 * host.size + 2 * num_blocks, dtype=np.int32)
    numbers[: 2 * host.size] = host.reshape(-1).view(np.int32)
    slots, starts = numbers[2 * host.size :].reshape(2, num_blocks)
    np.concatenate([blocks.slots for blocks in metadata.block_tables], out=slots)
    block_tokens = metadata.block_tables[0].block_tokens
    first_block = host[:, Column.FIRST_BLOCK]
    starts[:] = (np.arange(num_blocks) - np.repeat(first_block, host[:, Column.NUM_BLOCKS])) * block_tokens
    for entry in np.flatnonzero(host[:, Column.GAPS]):
        positions = metadata.block_tables[entry].positions
        starts[first_block[entry] : first_block[entry] + len(positions)] = positions - positions[0]
    there = to_device(numbers, device)
    on_device = there[2 * host.size :].view(2, num_blocks)
    return DeviceMetadata(
        slots=on_device[0],
        starts=on_device[1],
        entries=there[: 2 * host.size].view(torch.int64).view(host.shape),
        positions=metadata.positions.to(device, non_blocking=True),
        host=host,
        num_out_rows=int(host[:, Column.NUM_ROWS].sum()),
        block_tokens=block_tokens,
    )


def _entries(metadata: AttentionMetadata) -> NDArray[np.int64]:
    # In the order of Column; numpy fills an array from a list far faster than element by element.
    entries = []
    first_block = out_row = 0
    for rows, blocks in zip(metadata.rows, metadata.block_tables, strict=True):
        num_blocks, num_rows = len(blocks), len(rows)
        first, last = blocks.ends
        gaps = last - first - max(num_blocks - 1, 0) * blocks.block_tokens
        entries.append((first_block, num_blocks, blocks.num_existing, rows.start, num_rows, out_row, first, gaps))
        first_block += num_blocks
        out_row += num_rows
    return np.array(entries, dtype=np.int64).reshape(len(entries), len(Column))


@triton.jit
def keys_before(starts, num_blocks, num_keys, gaps, position, P: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many existing keys of an entry lie before `position`; they have the lowest indices. All scalars.

    starts: of the entry, at its first block. position: counted from FIRST_POSITION, may be negative. gaps bounds how
    far a block's index can be from start / P, so that an entry without gaps needs no search and no load.
    """
    position = tl.maximum(position, 0)
    low = tl.minimum((tl.maximum(position - gaps, 0) + P - 1) // P, num_blocks)
    high = tl.minimum((position + P - 1) // P, num_blocks)
    while low < high:
        middle = (low + high) // 2
        is_before = tl.load(starts + middle) < position
        high = tl.where(is_before, high, middle)
        low = tl.where(is_before, middle + 1, low)
    # Blocks [0, low) begin before the position; all but the last of them lie before it as a whole.
    block = tl.maximum(low - 1, 0)
    start = tl.load(starts + block, mask=(gaps > 0) & (low > 0), other=0)
    start = tl.where(gaps > 0, start, block * P)
    return tl.where(low > 0, tl.minimum(block * P + tl.minimum(position - start, P), num_keys), 0).to(tl.int32)
