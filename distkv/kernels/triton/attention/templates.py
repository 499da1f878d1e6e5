"""Which of the three decode templates a launch uses, and with what tiles.

Up to 8k keys a program reads all keys of a row: one pass. Up to 32k keys a row is split over a few programs, the last
of which merges. Longer rows are split deeply, and a second kernel merges. A launch that would leave most of the device
idle splits earlier: the number of programs comes from the device's multiprocessors.

A config may have a persistent grid: as many programs as the device runs at a time, each of which walks through items.
Keys are then divided so that the last of these rounds is nearly full.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

ONE_PASS_KEYS = 8 << 10
SPLIT_KEYS = 32 << 10
FUSED_PARTS = 32
"""Partials of a row that the program which ends last merges in one go."""

_TILE_BYTES, _TILE_KEYS = 16 << 10, 64
"""Of K in one tile at most. With V and two stages, 32 KiB of it on their way, three programs share a multiprocessor."""

_LEAST_TILES = 2
"""Tiles a program is worth starting for."""


_MANY_PROGRAMS = 128
"""From so many on, before any row is divided, a launch fills a large GPU by itself."""

_MERGED_NUMBERS, _MORE_MERGED_NUMBERS = 8192, 16384
"""Of partials in the registers of a program, and of one that has more of them: where there are two of a multiprocessor,
and the own results of each are few."""

_DIVISIONS = 64
"""That are compared for a persistent grid."""

_INTERPRETED_SMS = 4


class Template(StrEnum):
    """How a row's keys are divided between programs."""

    ONE_PASS = "one pass"
    SPLIT = "split"
    DEEP_SPLIT = "deep split"


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for. Types are torch's names for them."""

    heads: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    q_dtype: str
    kv_dtype: str

    @classmethod
    def of(cls, q: torch.Tensor, k: torch.Tensor) -> Shape:
        """q: [N, Hq, D]. k: [slots, Hkv, P, D]."""
        return _shape(q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.dtype, k.dtype)

    @property
    def head_tile(self) -> int:
        """Query heads of one program: a group, padded to what a matrix product takes, as far as registers hold it."""
        return min(max(16, _power_of_2(self.heads // self.kv_heads)), 64 if self.dot_bytes == 2 else 16)

    @property
    def merged_heads(self) -> int:
        """Query heads of one program, padded no further than to a power of 2: what merges their partials."""
        return min(self.head_tile, _power_of_2(self.heads // self.kv_heads))

    @property
    def padded_dim(self) -> int:
        """D, padded to what a matrix product takes."""
        return _power_of_2(max(self.head_dim, 16))

    @property
    def programs_per_item(self) -> int:
        """Programs of one row and one run of keys."""
        return self.kv_heads * -(-self.heads // self.kv_heads // self.head_tile)

    @property
    def dot_dtype(self) -> str:
        """What is multiplied: 16-bit numbers where queries have them and all keys are among them."""
        exact = self.kv_dtype in (self.q_dtype, "float8_e4m3fn")
        return self.q_dtype if exact else "float32"

    @property
    def dot_bytes(self) -> int:
        """Of a number that is multiplied."""
        return 4 if self.dot_dtype == "float32" else 2

    @property
    def key(self) -> str:
        """Its name in a tuned table."""
        return f"{self.heads}/{self.kv_heads}x{self.head_dim} P{self.block_tokens} {self.q_dtype} {self.kv_dtype}"


def _power_of_2(number: int) -> int:
    """The least one that is not below."""
    return 1 << (number - 1).bit_length()


@cache
def _shape(
    heads: int, kv_heads: int, head_dim: int, block_tokens: int, q_dtype: torch.dtype, kv_dtype: torch.dtype
) -> Shape:
    """Every layer asks for the same few."""
    names = (str(dtype).removeprefix("torch.") for dtype in (q_dtype, kv_dtype))
    return Shape(heads, kv_heads, head_dim, block_tokens, *names)


@dataclass(frozen=True)
class Config:
    """How a kernel runs. programs_per_sm: how many programs the items of a launch should be for each multiprocessor.
    resident: of a persistent grid, programs of a multiprocessor; 0: each program has an item of its own."""

    tile_keys: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    resident: int = 0

    def merged_parts(self, shape: Shape) -> int:
        """Partials that a program reads at a time: all before it uses the first."""
        has_more = self.programs_per_sm <= 2 and shape.head_tile * shape.padded_dim <= 16 * 128
        numbers = _MORE_MERGED_NUMBERS if has_more else _MERGED_NUMBERS
        return max(1, min(FUSED_PARTS, numbers // (shape.merged_heads * shape.padded_dim)))


def count_sms(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; of the interpreter on the CPU, some."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _INTERPRETED_SMS


def heuristic(shape: Shape, rows: int = 1) -> Config:
    """A config that needs no measurement. With few rows, few programs, and two tiles of each on their way; with many,
    one tile less where tiles are large, so that three programs have room on a multiprocessor."""
    tile = min(max(_TILE_BYTES // (shape.padded_dim * shape.dot_bytes), 16), _TILE_KEYS)
    # Products of float32 and the widening of 8-bit numbers are done in registers, which more warps have more of.
    is_16_bit = shape.kv_dtype in ("bfloat16", "float16") and shape.dot_bytes == 2
    warps = 4 if is_16_bit and shape.head_tile * shape.padded_dim <= 64 * 128 else 8
    stages = 4 if shape.kv_dtype == "float8_e4m3fn" else 3
    if rows * shape.programs_per_item < _MANY_PROGRAMS:
        return Config(tile, warps, stages, programs_per_sm=2)
    is_large = is_16_bit and tile * shape.padded_dim * shape.dot_bytes >= _TILE_BYTES
    return Config(tile, warps, stages - is_large, programs_per_sm=4)


def heuristics(shape: Shape) -> tuple[Config, ...]:
    """All that `heuristic` may return."""
    return tuple(dict.fromkeys(heuristic(shape, rows) for rows in (1, _MANY_PROGRAMS)))


def divide(keys: NDArray[np.int64], shape: Shape, config: Config, num_sms: int) -> tuple[Template, int]:
    """The template for rows that see up to `keys` [rows] keys each, and how many keys a program takes."""
    longest = int(keys.max(initial=1))
    few = merges_fused(longest, len(keys), shape, num_sms)
    taken = _taken(keys, few, shape, config, num_sms, ONE_PASS_KEYS)
    if longest <= taken:
        return Template.ONE_PASS, longest
    return Template.SPLIT if few else Template.DEEP_SPLIT, taken


def merges_fused(longest: int, rows: int, shape: Shape, num_sms: int) -> bool:
    """Whether rows of up to `longest` keys are split over so few programs that the last of them merges: a few for each
    multiprocessor are enough where they spare the second kernel."""
    return longest <= SPLIT_KEYS and FUSED_PARTS * rows * shape.programs_per_item >= num_sms


def keys_per_item(keys: NDArray[np.int64], fused: bool, shape: Shape, config: Config, num_sms: int) -> int:
    """How many keys a program takes so that rows of `keys` [rows] keys are at most `most_items` items."""
    return _taken(keys, fused, shape, config, num_sms, int(keys.max(initial=1)))


def most_items(rows: int, shape: Shape, config: Config, num_sms: int) -> int:
    """Items that so many rows are divided into, however long they are: each program takes its share, rounded up, and
    one of a row takes what is left of it."""
    return rows + config.programs_per_sm * num_sms // shape.programs_per_item


def grid_of(num_items: int, shape: Shape, config: Config, num_sms: int) -> int:
    """Programs of a launch."""
    programs = num_items * shape.programs_per_item
    return min(programs, config.resident * num_sms) if config.resident else programs


def _taken(keys: NDArray[np.int64], fused: bool, shape: Shape, config: Config, num_sms: int, most_keys: int) -> int:
    """At most about most_keys, where the programs wanted would take more."""
    if config.resident:
        return _balanced(keys, fused, shape, config, num_sms)
    longest = int(keys.max(initial=1))
    wanted = config.programs_per_sm * num_sms
    if longest <= ONE_PASS_KEYS and 2 * len(keys) * shape.programs_per_item >= wanted:
        return longest
    share = -(-int(keys.sum()) * shape.programs_per_item // wanted)
    least = _LEAST_TILES * config.tile_keys
    if fused:
        least = max(least, -(-longest // FUSED_PARTS))
    return -(-max(min(share, most_keys), least) // config.tile_keys) * config.tile_keys


def _balanced(keys: NDArray[np.int64], fused: bool, shape: Shape, config: Config, num_sms: int) -> int:
    """Of the divisions into at most `most_items`, the one that a persistent grid has done first: rounds of the grid
    times what an item takes, a tile for its beginning and end included."""
    longest = int(keys.max(initial=1))
    limit = most_items(len(keys), shape, config, num_sms)
    most_parts = min(longest // (_LEAST_TILES * config.tile_keys), FUSED_PARTS if fused else limit)
    parts = np.unique(np.geomspace(1, max(most_parts, 1), _DIVISIONS).astype(np.int64))
    taken = -(-longest // (parts * config.tile_keys)) * config.tile_keys
    items = np.maximum(-(-keys // taken[:, None]), 1).sum(1)
    rounds = -(-items * shape.programs_per_item // (config.resident * num_sms))
    cost = np.where(items <= limit, rounds * (taken + config.tile_keys), np.inf)
    return int(taken[cost.argmin()])
