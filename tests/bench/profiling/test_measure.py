"""What is measured of engines whose times follow a law is that law, and predicts them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from distkv.bench.profiling.compare import compare, errors, grid, share_within
from distkv.bench.profiling.measure import Measuring, Shape
from distkv.bench.profiling.plan import FULL, QUICK, Budget
from distkv.bench.profiling.run import within
from distkv.control.performance.model import PerformanceModel
from distkv.errors import ConfigError
from distkv.wire.messages.profile import Profile
from tests.bench.profiling.law import BLOCK, LAYERS, MS, US, Disturbed, Law, pair

SHAPE = Shape(model="m", layers=LAYERS, query_bytes=400, partial_bytes=600, kv_bytes=256, most_tokens=65536)


class Run:
    """One run under a law."""

    def __init__(
        self, law: Law, *, budget_s: float = 1e6, quick: bool = False, disturbed: Disturbed = lambda: 1.0
    ) -> None:
        self.said: list[str] = []
        self.debtor, self.creditor = pair(law, disturbed)
        self.sizes = QUICK if quick else FULL
        measuring = Measuring(self.debtor, self.creditor, SHAPE, self.sizes, Budget(budget_s), self.said.append)
        self.profile: Profile = asyncio.run(measuring.profile(grid(self.sizes, BLOCK)))
        self.points = compare(self.profile, self.sizes, measuring.turns)


def test_the_law_is_found() -> None:
    law = Law()
    profile = Run(law).profile
    model = PerformanceModel(profile)
    assert model.step_s(1, 0, busy=False) == pytest.approx(10.5 * MS)
    assert model.step_s(48, 10_000, busy=False) == pytest.approx(10 * MS + 48 * 0.5 * MS + 20 * MS)
    assert model.step_s(1, 0) == pytest.approx(1.3 * 10.5 * MS + 0.7 * MS)
    assert model.prefill_s(256, 1000) == pytest.approx(266 * MS + (2 * US + 25.6 * US) * (1000 + 128.5))
    assert model.remote_s(2000, busy=False) == pytest.approx(0.4 * MS + 4 * US + 6 * MS, rel=1e-3)
    assert model.remote_s(2000, busy=True) == pytest.approx(1 * MS + 4 * US + 9 * MS, rel=1e-3)
    assert model.remote_s(2000, busy=False, link="network") == pytest.approx(1.4 * MS + 4 * US + 6 * MS, rel=1e-2)
    shipped = 3 * MS + 0.4 * MS + 64 * 4 * US + (3 + 0.3 * 64) * US * 1000
    assert model.ship_s(64, 1000, busy=False) == pytest.approx(shipped, rel=1e-2)
    fetched = model.profile.links["host"].round_trip_s + LAYERS * 256 * 1000 / 1e9 + (2 + 6.4) * US * 1000
    assert model.fetch_s(64, 1000) == pytest.approx(fetched, rel=1e-2)
    assert profile.serving_share == pytest.approx(0.5, rel=1e-2)
    assert profile.serving_step_s == pytest.approx(0.3 * MS, rel=2e-2)
    assert profile.crowded_times == pytest.approx(1.3)
    assert profile.crowded_step_s == pytest.approx(0.7 * MS)
    assert profile.block_tokens == BLOCK and profile.serves == "model m/1, dtype float32"


def test_it_predicts_every_point_of_the_grid() -> None:
    run = Run(Law())
    sizes = run.sizes
    assert len(run.points) == 2 * len(sizes.first_tokens) * len(sizes.grid_batches) * len(sizes.shares)
    assert sum(point.creditor is not None for point in run.points) == len(run.points) / 2
    assert max(errors(run.points)) < 0.02 and share_within(run.points) == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"trip_s": 50 * MS},
        {"served_token_s": 50 * US},
        {"share": 0.0},
        {"asking_s": 0.0},
        {"more_s": {1: 3 * MS, 2: 6 * MS}},
    ],
)
def test_other_laws_are_predicted_too(changes: dict[str, Any]) -> None:
    assert max(errors(Run(Law(**changes)).points)) < 0.03


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_that_others_use_now_and_then_is_predicted_too(seed: int) -> None:
    """For minutes everything takes up to twice as long, and every visit some percent more or less."""
    draw = Random(seed)
    left, times = 0, 1.0

    def disturbed() -> float:
        nonlocal left, times
        if not left:
            left, times = draw.randrange(20, 200), draw.choice((1.0, 1.0, 1.0, draw.uniform(1.2, 2.0)))
        left -= 1
        return times * draw.uniform(0.97, 1.06)

    assert (share_within(Run(Law(), disturbed=disturbed).points) or 0.0) >= 0.9


def test_a_spent_budget_leaves_points_out_and_still_makes_a_profile() -> None:
    full, cut = Run(Law()), Run(Law(), budget_s=1e-9)
    assert [len(cut.profile.step), len(cut.profile.attention)] == [3, 2], "the first, the last, and a base of others"
    assert len(full.profile.step) == len(FULL.batches)
    assert PerformanceModel(cut.profile).step_s(64, 8000) == pytest.approx(
        PerformanceModel(full.profile).step_s(64, 8000), rel=1e-3
    )
    assert cut.points == () and share_within(()) is None
    assert len(cut.said) < len(full.said)


@pytest.mark.parametrize(("token_s", "largest"), [(0.006, 512), (0.012, 256), (0.05, 64), (1.0, 16)])
def test_chunks_that_would_take_longer_than_there_is_time_for_are_not_begun(token_s: float, largest: int) -> None:
    """Of 240 s, by what the smallest two say; what the larger ones take is predicted by those."""
    run = Run(Law(prefill_token_s=token_s), budget_s=240.0)
    assert [run.profile.prefill[-1].size, run.profile.serving_prefill[-1].size] == [largest, min(256, largest)]
    assert not any(f"of {more} tokens" in text for more in (64, 256, 512) if more > largest for text in run.said)
    expected = 10 * MS + 512 * token_s + (2 + 51.2) * US * (1000 + 256.5)
    assert PerformanceModel(run.profile).prefill_s(512, 1000) == pytest.approx(expected, rel=0.05)


def test_a_quick_run_measures_less() -> None:
    quick, full = Run(Law(), quick=True), Run(Law())
    assert quick.debtor.timed < 0.2 * full.debtor.timed  # type: ignore[attr-defined]


@pytest.mark.parametrize("block", [16, 64, 128, 256])
@pytest.mark.parametrize("quick", [True, False])
def test_sizes_are_whole_blocks_and_tell_something(block: int, quick: bool) -> None:
    sizes = within(QUICK if quick else FULL, 131072, block)
    for name in ("context_tokens", "remote_tokens", "first_tokens"):
        tokens = getattr(sizes, name)
        assert tokens == tuple(sorted(set(tokens))) and all(one % block == 0 for one in tokens)
    assert min(sizes.context_tokens) > block * max(sizes.grid_batches)
    assert min(sizes.remote_tokens) > block


def test_blocks_that_are_too_large_for_the_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="for rBlocks of 64, it has 2,048"):
        within(FULL, 2048, 64)
