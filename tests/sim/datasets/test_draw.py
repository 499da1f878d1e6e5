"""Datasets against the tables of the papers."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from distkv.errors import ConfigError
from distkv.sim.datasets.draw import dataset
from distkv.sim.datasets.tables import DATASETS
from distkv.sim.trace import TraceRequest

PRINTED_000 = [
    (ids, normal, long_share)
    for row, long_share in enumerate((0.01, 0.10, 0.30))
    for ids, normal in zip(
        range(6 * row + 1, 6 * row + 7), (100_000, 140_000, 300_000, 240_000, 600_000, 950_000), strict=True
    )
]
"""Table 2: dataset, longest normal request, ratio of long ones, which are up to twice as long."""
PRINTED_001 = [
    (0, 60e3, 1233, 7785.68),
    (1, 60e3, 712, 5531.4),
    (2, 60e3, 469, 3506.36),
    (3, 200e3, 56_362, 28_787.78),
    (4, 280e3, 75_650, 39_479.42),
    (5, 600e3, 160_239, 87_906.67),
    (6, 480e3, 128_804, 70_647.93),
    (7, 1200e3, 293_945, 172_169.14),
    (8, 2000e3, 498_609, 261_817.24),
]
"""Table 1: trace, longest, mean, standard deviation."""


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("number", "longest", "mean", "deviation"), PRINTED_001)
def test_a_trace_of_001_has_the_range_mean_and_deviation_that_are_printed(
    number: int, longest: float, mean: float, deviation: float, seed: int
) -> None:
    lengths = [one.num_tokens for one in dataset(f"infinite-{number}", seed=seed)]
    assert (len(lengths), min(lengths), max(lengths)) == (1000, 2, longest)
    assert statistics.fmean(lengths) == pytest.approx(mean, rel=0.05)
    assert statistics.pstdev(lengths) == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(("number", "normal", "long_share"), PRINTED_000)
def test_a_dataset_of_000_has_the_ranges_and_the_share_of_long_requests_that_are_printed(
    number: int, normal: int, long_share: float
) -> None:
    lengths = sorted(one.num_tokens for one in dataset(f"distkv-{number}", seed=number))
    long = [tokens for tokens in lengths if tokens > normal]
    assert len(long) == pytest.approx(1000 * long_share, abs=1)
    assert (lengths[0], lengths[-1]) == (2, 2 * normal)
    assert lengths[-len(long) - 1] == pytest.approx(normal, rel=0.05)
    assert long[0] == pytest.approx(normal, rel=0.11)
    moments = [statistics.fmean(lengths), statistics.pstdev(lengths)]
    for seed in (1, 2):
        others = [one.num_tokens for one in dataset(f"distkv-{number}", seed=seed)]
        assert [statistics.fmean(others), statistics.pstdev(others)] == pytest.approx(moments, rel=0.05)


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("kvdirect-arxiv", 40_642, 241), ("kvdirect-sharegpt", 20_471, 2328)]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_dataset_of_004_has_the_mean_lengths_that_are_printed(name: str, prompt: int, output: int, seed: int) -> None:
    requests = dataset(name, seed=seed)
    assert statistics.fmean(one.prompt_tokens for one in requests) == pytest.approx(prompt, rel=0.01)
    assert statistics.fmean(one.output_tokens for one in requests) == pytest.approx(output, rel=0.01)
    assert max(one.num_tokens for one in requests) == 131_072


def test_arrivals_are_a_poisson_process() -> None:
    requests = dataset("infinite-3", per_s=4.0, count=4000)
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(requests)]
    assert requests[0].arrival_s == 0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.1)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


def test_the_same_arguments_draw_the_same_requests_in_an_order_of_their_own() -> None:
    requests = dataset("distkv-1", count=200, seed=3)
    assert requests == dataset("distkv-1", count=200, seed=3) != dataset("distkv-1", count=200, seed=4)
    lengths = [one.num_tokens for one in requests]
    assert lengths != sorted(lengths)
    faster = dataset("distkv-1", count=200, seed=3, per_s=10.0)
    assert [one.num_tokens for one in faster] == lengths


def test_conversations_generate_more_of_their_tokens_than_documents() -> None:
    conversation, document = dataset("infinite-0"), dataset("infinite-3")
    assert _output_share(conversation) == pytest.approx(2328 / 22_799, rel=0.02)
    assert _output_share(document) == pytest.approx(241 / 40_883, rel=0.02)
    for one in dataset("distkv-13"):
        share = 241 / 40_883 if one.num_tokens > 100_000 else 2328 / 22_799
        assert one.prompt_tokens >= 1 and one.output_tokens == max(1, round(share * one.num_tokens))


@pytest.mark.parametrize("name", DATASETS)
def test_one_request_is_enough(name: str) -> None:
    (only,) = dataset(name, count=1)
    assert only.prompt_tokens >= 1 and only.output_tokens >= 1


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dataset: there is no dataset 'infinte-3' .*did you mean infinite-3"):
        dataset("infinte-3")


def _output_share(requests: list[TraceRequest]) -> float:
    return sum(one.output_tokens for one in requests) / sum(one.num_tokens for one in requests)
