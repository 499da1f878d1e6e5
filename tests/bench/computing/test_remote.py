"""`distkv bench remote` from the command line, and how it judges what it measured."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.computing import remote
from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.quantile import quantile
from distkv.bench.remote_cells.goals import (
    ALONE,
    BESIDE,
    IDLE,
    LONG,
    ONE,
    OWN_STEPS,
    ROUND_TRIP,
    SERVING,
    SHARE,
    SHARE_BESIDE,
    THREE,
    TWO,
    goals_of,
    layer_case,
    token_case,
)
from distkv.bench.remote_cells.layers import BEYOND, BEYOND_P99, parts_us
from distkv.bench.remote_cells.memory import BY_ONE, BY_TWO, READ
from distkv.engine.attention.layer_times import LayerTimes, ServedTimes
from distkv.kernels.cpu.calls.library import installed
from tests.bench.quick_run import drawn_report


@pytest.mark.slow
@pytest.mark.skipif(
    not any(native.has_exchange for native in installed().levels.values()), reason="the native library is not built"
)
def test_a_quick_run(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0), sys.getswitchinterval()
    report = drawn_report(remote.main, tmp_path)
    assert (os.sched_getaffinity(0), sys.getswitchinterval()) == before
    found = {(row["case"], row["variant"]): row["median"] for row in report["results"]}
    for context in (256, 512):
        assert all(found[token_case(context), name] > 0 for name in (ONE, TWO, THREE))
        for load in ("idle", "busy"):
            assert found[layer_case(context, load), "own attention"] > 0
            assert found[layer_case(context, load), BEYOND_P99] >= found[layer_case(context, load), BEYOND] >= 0
    assert found[READ, BY_TWO] > 0
    assert found[OWN_STEPS, ALONE] > 0 and found[ROUND_TRIP, "shm"] > 0 and found[ROUND_TRIP, "tcp"] > 0
    assert len(report["goals"]) == 9


def test_the_wait_counts_from_the_slower_partial() -> None:
    debtor = [LayerTimes(0, 1.0, 1.1, 1.5, 1.6, 1.7), LayerTimes(1, 2.0, 2.1, 2.2, 2.9, 2.95)]
    creditor = [ServedTimes(0, 1.2, 1.3), ServedTimes(1, 2.2, 2.6)]
    parts = parts_us(debtor, creditor)
    assert parts[BEYOND] == pytest.approx(1e6 * (0.1 + 0.3) / 2)
    assert parts[BEYOND_P99] == pytest.approx(1e6 * 0.3)
    assert parts["the creditor's attention"] == pytest.approx(1e6 * (0.1 + 0.4) / 2)
    with pytest.raises(RuntimeError, match="2 layers"):
        parts_us(debtor, creditor[:1])


def test_percentiles() -> None:
    values = [float(value) for value in range(200)]
    assert (quantile(values, 0.99), quantile(values, 0.5), quantile([7.0], 0.99)) == (197.0, 99.0, 7.0)


def samples(two: float, three: float, beyond: float, serving: float) -> Samples:
    """Of rounds that all found the same, but for a little that differs; one instance takes 10 ms."""
    draw = random.Random(1)

    def of(value: float) -> list[float]:
        return [value * draw.uniform(0.99, 1.01) for _ in range(9)]

    return {
        token_case(LONG): {ONE: of(10.0), TWO: of(two), THREE: of(three)},
        layer_case(LONG, "idle"): {BEYOND: of(beyond)},
        layer_case(LONG, "busy"): {BEYOND_P99: of(900.0)},
        OWN_STEPS: {
            ALONE: of(100.0),
            BESIDE: of(90.0),
            SERVING: of(serving),
            SHARE: of(60.0),
            SHARE_BESIDE: of(50.0),
        },
        ROUND_TRIP: {"shm": of(40.0), "tcp": of(70.0)},
        IDLE: {"creditor": of(0.0)},
        READ: {BY_ONE: of(40.0), BY_TWO: of(50.0)},
    }


@pytest.mark.parametrize(
    ("two", "three", "beyond", "serving", "met"), [(7.0, 9.0, 50.0, 55.0, True), (9.0, 11.0, 70.0, 45.0, False)]
)
def test_goals(two: float, three: float, beyond: float, serving: float, met: bool) -> None:
    """A creditor whose own steps were to fall to 60 % by the bytes may fall to 50 %."""
    found = goals_of(samples(two, three, beyond, serving), [LONG], MODELS["b"])
    times, limit, rates, waits, busy, kept, kept_beside, shm, tcp, idle = found
    assert [one.met for one in (times, rates, waits, kept)] == [met] * 4
    assert (busy.met, shm.met, tcp.met, idle.met) == (None, True, False, True)
    assert float(kept.target.removeprefix("at least ")) == pytest.approx(0.5, abs=0.01)
    assert float(kept_beside.target.removeprefix("at least ")) == pytest.approx(5 / 9 - 0.1, abs=0.01)
    assert kept_beside.met
    # 0.2 GB of weights, and 0.4 GB of KV in four fifths of the time.
    assert (limit.met, float(limit.measured)) == (None, pytest.approx(0.87, abs=0.006))
