"""How a prefill launch is cut: tiles that the device has room for, and keys divided where rows are few."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton

from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.metadata import Column, DeviceMetadata

HOPPER_SHARED_BYTES = 227 << 10
FEW_PAIRS = 64
"""Of a query row and a head: up to so many get smaller tiles."""

_LEAST_TILES = 4
"""Tiles of keys a program is worth starting for."""


@dataclass(frozen=True)
class Tiles:
    """How a program works. rows: pairs of query row and head (BLOCK_M). keys: of one tile (BLOCK_N)."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def prefill_tiles(shape: Shape, num_pairs: int, alibi: bool, shared_bytes: int = HOPPER_SHARED_BYTES) -> Tiles:
    """Tiles for entries of up to num_pairs pairs per KV head, that fit the shared memory of a program.

    Read off what the compiler makes of them for Hopper: the largest that keep everything in registers, with keys and
    values on their way two tiles ahead.
    """
    dim: int = triton.next_power_of_2(max(shape.head_dim, 16))
    if shape.dot_dtype == "float32":
        choices = [Tiles(32, 32, 4, 2), Tiles(16, 16, 4, 1)]
    elif num_pairs <= FEW_PAIRS:
        choices = [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2), Tiles(64, 16, 4, 1)]
    elif dim <= 64:
        choices = [Tiles(128, 64, 4, 3), Tiles(128, 64, 4, 2)]
    else:
        choices = [Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 2), Tiles(64, 16, 4, 1)]
        if dim <= 128 and not alibi and shape.kv_dtype == shape.q_dtype:
            choices.insert(0, Tiles(128, 128, 8, 3))
    number_bytes = 4 if shape.dot_dtype == "float32" else 2

    def fits(tiles: Tiles) -> bool:
        return (tiles.rows + 2 * tiles.num_stages * tiles.keys) * dim * number_bytes <= shared_bytes

    return next(filter(fits, choices), choices[-1])


def candidates(shape: Shape) -> list[Tiles]:
    """What is worth measuring for many rows without window and ALiBi, the heuristic's first. Few: each
    takes seconds to compile."""
    first = prefill_tiles(shape, FEW_PAIRS + 1, alibi=False)
    return list(dict.fromkeys((first, Tiles(128, 128, 8, 2), Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 3))))


@cache
def device_limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and shared memory of a program in bytes."""
    if device.type != "cuda":
        return 1, HOPPER_SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    shared_bytes: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # missing in the stub
    return properties.multi_processor_count, shared_bytes


def key_splits(programs: int, wanted: int, tile_keys: int, metadata: DeviceMetadata) -> int:
    """Into how many parts the keys are divided, so that about `wanted` programs run."""
    if 2 * programs > wanted:
        return 1
    longest = int(metadata.host[:, Column.NUM_KEYS].max())
    return max(1, min(wanted // programs, longest // (_LEAST_TILES * tile_keys)))
