"""The algebra of ScaleReduce."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.kernels import Backend, BlockTable, Partial, empty_partial, merge
from distkv.kernels.attention.reference import micro_attention
from tests.kernels.layers import device_of

ROWS, HEADS, DIM = 3, 2, 4
EXACT = dict(atol=1e-12, rtol=1e-12)


def random_partial(seed: int, spread: float = 30.0) -> Partial:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(ROWS, HEADS, DIM, generator=generator, dtype=torch.float64)
    lse = torch.randn(ROWS, HEADS, generator=generator, dtype=torch.float64) * spread
    empty = torch.rand(ROWS, HEADS, generator=generator) < 0.2
    return out.masked_fill(empty[..., None], 0.0), lse.masked_fill(empty, -torch.inf)


def assert_same(left: Partial, right: Partial) -> None:
    torch.testing.assert_close(left[0], right[0], **EXACT)
    torch.testing.assert_close(left[1], right[1], **EXACT)


seeds = st.integers(0, 2**31)


@given(seeds, seeds)
@settings(deadline=None)
def test_merge_is_commutative(a: int, b: int) -> None:
    assert_same(merge([random_partial(a), random_partial(b)]), merge([random_partial(b), random_partial(a)]))


@given(seeds, seeds, seeds)
@settings(deadline=None)
def test_merge_is_associative(a: int, b: int, c: int) -> None:
    x, y, z = random_partial(a), random_partial(b), random_partial(c)
    flat = merge([x, y, z])
    assert_same(merge([merge([x, y]), z]), flat)
    assert_same(merge([x, merge([y, z])]), flat)


@given(seeds)
@settings(deadline=None)
def test_the_empty_partial_is_the_identity(a: int) -> None:
    x, empty = random_partial(a), empty_partial(ROWS, HEADS, DIM, torch.float64)
    assert_same(merge([x, empty]), x)
    assert_same(merge([empty, x]), x)
    assert_same(merge([empty, empty]), empty)


@given(seeds)
@settings(deadline=None)
def test_merge_leaves_its_inputs_as_they_are(a: int) -> None:
    x, y = random_partial(a), random_partial(a + 1)
    merge([x, y])
    assert_same(x, random_partial(a))
    assert_same(y, random_partial(a + 1))


@given(st.lists(st.sampled_from("abc"), min_size=6, max_size=6), seeds)
@settings(max_examples=30, deadline=None)
def test_any_partition_of_the_keys_merges_to_the_whole(owners: list[str], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(6, 1, 2, DIM, generator=generator) for _ in range(2))
    q = torch.randn(ROWS, HEADS, DIM, generator=generator)
    q_positions = torch.tensor([0, 7, 11])

    def attend(slots: list[int]) -> Partial:
        blocks = BlockTable(tuple(slots), tuple(2 * slot for slot in slots), 11, 2)
        return micro_attention(q, k, v, blocks, q_positions, 0.5, None)

    parts = [attend([slot for slot in range(6) if owners[slot] == owner]) for owner in "abc"]
    assert_same(merge(parts), attend(list(range(6))))


@given(st.lists(seeds, min_size=1, max_size=9))
@settings(max_examples=25, deadline=None)
def test_backends_merge_as_the_formula_says(backend: Backend, numbers: list[int]) -> None:
    partials = [random_partial(number) for number in numbers]
    device = device_of(backend)
    out, lse = backend.merge([(part.float().to(device), total.float().to(device)) for part, total in partials])
    expected_out, expected_lse = merge([(part.float().double(), total.float().double()) for part, total in partials])
    close = dict(atol=2e-6, rtol=2e-6, check_device=False)
    torch.testing.assert_close(out.double(), expected_out, **close)
    torch.testing.assert_close(lse.double(), expected_lse, **close)


@pytest.mark.filterwarnings("ignore:.*(invalid value|All-NaN slice) encountered")  # of Triton's interpreter
@pytest.mark.parametrize("beside", ["nothing", "no keys", "keys"])
def test_what_is_no_number_stays_none(backend: Backend, beside: str) -> None:
    """Also where all else is empty: as if there were no keys, a request of broken weights would go on."""
    device = device_of(backend)
    nan = tuple(part.float().fill_(torch.nan) for part in random_partial(1))
    others = {"nothing": (), "no keys": (empty_partial(ROWS, HEADS, DIM),), "keys": (random_partial(2),)}[beside]
    given = [tuple(part.float().to(device) for part in partial) for partial in (nan, *others)]
    for order in (given, given[::-1]):
        out, lse = backend.merge(order)
        assert out.isnan().all() and lse.isnan().all()
