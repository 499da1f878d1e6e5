"""Which template and tiles a launch gets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.attention.templates import FUSED_PARTS, Config, Shape, Template, divide, heuristic

LLAMA = Shape(32, 8, 128, 16, "bfloat16", "bfloat16")
SMS = 132
K = 1024


def divided(keys: list[int], shape: Shape = LLAMA, config: Config | None = None) -> tuple[Template, int]:
    return divide(np.array(keys, dtype=np.int64), shape, config or heuristic(shape), SMS)


@pytest.mark.parametrize("keys", [1, 500, 4 * K, 8 * K])
def test_short_rows_that_fill_the_device_are_one_pass(keys: int) -> None:
    assert divided([keys] * 64) == (Template.ONE_PASS, keys)


def test_short_rows_that_would_leave_it_idle_are_split() -> None:
    template, taken = divided([4 * K])
    assert template is Template.SPLIT
    assert 4 * K / taken * LLAMA.programs_per_item >= 0.9 * SMS


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_up_to_32k_keys_the_last_program_merges(rows: int) -> None:
    for keys in (9 * K, 20 * K, 32 * K):
        template, taken = divided([keys] * rows)
        assert template is Template.SPLIT
        assert -(-keys // taken) <= FUSED_PARTS


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_longer_rows_are_split_deeply(rows: int) -> None:
    for keys in (33 * K, 128 * K, 1 << 20):
        template, taken = divided([keys] * rows)
        assert template is Template.DEEP_SPLIT
        assert rows * -(-keys // taken) * LLAMA.programs_per_item >= 2 * SMS
        assert taken <= 8 * K


def test_a_single_kv_head_is_split_deeply_before_that() -> None:
    assert divided([16 * K], replace(LLAMA, kv_heads=1))[0] is Template.DEEP_SPLIT


def test_a_long_row_among_short_ones_is_divided_by_the_work_of_all() -> None:
    template, taken = divided([100] * 63 + [200 * K])
    assert template is Template.DEEP_SPLIT
    assert 2 * K <= taken <= 8 * K


@pytest.mark.parametrize("keys", [[], [0], [0, 0, 3]])
def test_rows_with_hardly_any_keys(keys: list[int]) -> None:
    assert divided(keys)[0] is Template.ONE_PASS


def test_programs_take_whole_tiles() -> None:
    for keys in (5000, 20_000, 70_001):
        assert divided([keys])[1] % heuristic(LLAMA).tile_keys == 0


def rounds_filled(keys: list[int], config: Config) -> float:
    """The share of its rounds that a persistent grid of an H100 or H200 attends in, were all items as long."""
    template, taken = divided(keys, config=config)
    grid = config.resident * SMS
    programs = sum(max(-(-count // taken), 1) for count in keys) * LLAMA.programs_per_item
    assert template is Template.ONE_PASS or taken % config.tile_keys == 0
    return sum(keys) * LLAMA.programs_per_item / (-(-programs // grid) * grid * taken)


@pytest.mark.parametrize("resident", [2, 3])
@pytest.mark.parametrize(
    ("rows", "keys"), [(1, 128 * K), (8, 2 * K), (16, 8 * K), (32, 2 * K), (64, 2 * K), (64, 4 * K), (48, 3000)]
)
def test_the_last_round_of_a_persistent_grid_is_nearly_full(rows: int, keys: int, resident: int) -> None:
    config = replace(heuristic(LLAMA), programs_per_sm=4 * resident, resident=resident)
    assert rounds_filled([keys] * rows, config) >= 0.85


def test_rows_of_all_lengths_are_divided_by_the_longest() -> None:
    config = replace(heuristic(LLAMA), programs_per_sm=6, resident=3)
    for keys in ([100] * 63 + [200 * K], [*range(1, 4 * K, 64)], [0], [], [1]):
        template, taken = divided(keys, config=config)
        items = sum(max(-(-count // taken), 1) for count in keys)
        assert items <= len(keys) + 6 * SMS // LLAMA.programs_per_item
        assert (template is Template.ONE_PASS) == (items == len(keys))


@pytest.mark.parametrize(
    ("shape", "tile", "head_tile"),
    [
        (LLAMA, 64, 16),
        (replace(LLAMA, head_dim=64), 64, 16),
        (replace(LLAMA, head_dim=80), 64, 16),
        (replace(LLAMA, head_dim=256), 32, 16),
        (replace(LLAMA, head_dim=2), 64, 16),
        (replace(LLAMA, kv_dtype="float8_e4m3fn"), 64, 16),
        (replace(LLAMA, q_dtype="float32", kv_dtype="float32"), 32, 16),
        (replace(LLAMA, q_dtype="float16"), 32, 16),
        (replace(LLAMA, heads=64, kv_heads=1), 64, 64),
        (replace(LLAMA, heads=71, kv_heads=1), 64, 64),
    ],
)
def test_tiles_hold_up_to_64_keys_and_16_kib_of_what_is_multiplied(shape: Shape, tile: int, head_tile: int) -> None:
    assert heuristic(shape).tile_keys == tile
    assert shape.head_tile == head_tile


def test_heads_beyond_a_tile_are_programs_of_their_own() -> None:
    assert replace(LLAMA, heads=71, kv_heads=1).programs_per_item == 2
    assert replace(LLAMA, heads=64, kv_heads=1, q_dtype="float32").programs_per_item == 4
    assert LLAMA.programs_per_item == 8


def test_16_bit_numbers_are_multiplied_where_all_operands_are_such() -> None:
    types = {("bfloat16", "bfloat16"): "bfloat16", ("float16", "float8_e4m3fn"): "float16"}
    types |= {("float32", "bfloat16"): "float32", ("bfloat16", "float16"): "float32", ("float32", "float32"): "float32"}
    types |= {("float32", "float8_e4m3fn"): "float32", ("bfloat16", "float32"): "float32"}
    for (q_dtype, kv_dtype), product in types.items():
        assert replace(LLAMA, q_dtype=q_dtype, kv_dtype=kv_dtype).dot_dtype == product
