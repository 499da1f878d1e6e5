from __future__ import annotations

import itertools

import pytest

from distkv.bench.baselines import comparison as module
from distkv.bench.baselines.cases import Answer, Case
from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.baselines.comparison import Comparison, Contender
from distkv.bench.baselines.process import BaselineFailed, CoresInUse

TINY = MODELS["tiny"]
SHORT = Case("decode", 128, 3)
LONG = Case("decode", 16384, 3)
PREFILL = Case("prefill", 128, 1)
BANDWIDTH = 1e9


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Which processes had to be idle, sample by sample."""
    waited = []

    def wait(roots):
        waited.append(set(roots))
        return CoresInUse(0.0, 0.0)

    monkeypatch.setattr(module, "wait_until_idle", wait)
    return waited


class Fake:
    """Decodes at a rate, with a first token after first_s, until it has answered `lives` times."""

    def __init__(self, rate, first_s=1.0, lives=10**9, token=7):
        self.rate, self.first_s, self.lives, self.token = rate, first_s, lives, token
        self.asked = []

    def __call__(self, prompts, max_tokens):
        self.asked.append(prompts)
        if len(self.asked) > self.lives:
            raise BaselineFailed("no memory")
        times_s = [self.first_s + index / self.rate for index in range(max_tokens)]
        return Answer([[self.token] * max_tokens for _ in prompts], [times_s for _ in prompts])


def comparison(patience_s=100.0, **fakes):
    pids = itertools.count(1)
    contenders = [
        Contender(name.replace("_", " "), name.partition("_")[0], fake, (next(pids),)) for name, fake in fakes.items()
    ]
    return Comparison(TINY, contenders, lambda: BANDWIDTH, patience_s, lambda text: None)


def test_each_baseline_counts_with_its_best_settings():
    fakes = {"distkv": Fake(50), "baseline_bf16": Fake(10), "baseline_f32": Fake(20), "other": Fake(5)}
    found = comparison(patience_s=1e6, **fakes)
    found.run(SHORT, 2)
    rates = found.samples[SHORT.name]
    assert list(rates) == ["distkv", "baseline", "other", "memory limit"]
    assert rates["distkv"] == pytest.approx([50, 50]) and rates["baseline"] == pytest.approx([20, 20])
    assert rates["memory limit"] == pytest.approx([BANDWIDTH / TINY.step_bytes(130, 1)] * 2)
    assert found.tried[SHORT.name] == pytest.approx({"distkv": 50, "baseline bf16": 10, "baseline f32": 20, "other": 5})
    assert found.chosen[SHORT.name]["baseline"] == "baseline f32"
    assert len(fakes["baseline_bf16"].asked) == 1
    # All get the same prompts in a round.
    assert fakes["distkv"].asked == fakes["baseline_f32"].asked == fakes["other"].asked
    # What was best for the kind is taken for a long prompt without a warm-up.
    found.run(LONG, 1)
    assert found.chosen[LONG.name]["baseline"] == "baseline f32" and LONG.name not in found.tried


def test_all_others_have_to_be_idle(idle):
    found = comparison(distkv=Fake(50), baseline=Fake(10))
    found.run(SHORT, 2)
    assert idle == [{2}, {1}, {1}, {2}]
    assert found.bandwidth_gb_per_s() == {"median": 1, "min": 1, "max": 1}


def test_prefill_has_no_memory_limit():
    found = comparison(distkv=Fake(50, first_s=2.0), baseline=Fake(10, first_s=4.0))
    found.run(PREFILL, 1)
    assert found.samples[PREFILL.name] == {"distkv": [64.0], "baseline": [32.0]}


def test_a_baseline_that_would_take_too_long_is_left_out():
    found = comparison(patience_s=500.0, distkv=Fake(50), slow_a=Fake(10, first_s=0.5), fast=Fake(5, first_s=0.01))
    found.run(SHORT, 1)
    found.run(LONG, 1)
    assert list(found.samples[LONG.name]) == ["distkv", "fast", "memory limit"]
    assert "would take about 724 s" in found.left_out[LONG.name]["slow a"]
    assert found.left_out[SHORT.name] == {}


def test_a_baseline_that_fails_is_left_out_and_the_others_start_over_with_new_prompts():
    distkv, broken = Fake(50), Fake(10, lives=2)
    found = comparison(distkv=distkv, broken=broken)
    found.run(SHORT, 2)
    assert found.samples[SHORT.name]["distkv"] == pytest.approx([50, 50])
    assert "broken" not in found.samples[SHORT.name]
    assert found.left_out[SHORT.name] == {"broken": "no memory"}
    seen = [str(prompts) for prompts in distkv.asked]
    assert len(seen) == len(set(seen))
    found.run(PREFILL, 1)
    assert list(found.samples[PREFILL.name]) == ["distkv"]


def test_first_tokens_are_compared():
    found = comparison(distkv=Fake(50), same=Fake(10), other=Fake(10, token=8))
    found.run(SHORT, 2)
    assert (found.agreement("same"), found.agreement("other")) == ((3, 3), (0, 3))
