from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from distkv.engine.sampler import noise, sample
from distkv.wire.messages.to_worker import Sampling


def logits(seed: int = 0, size: int = 50) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def expected_probabilities(row: Tensor, sampling: Sampling) -> Tensor:
    scores = TemperatureLogitsWarper(sampling.temperature)(None, row[None].double())
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores.softmax(-1)[0]


SETTINGS = [
    Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1),
    Sampling(temperature=0.7, top_k=5, top_p=1.0, seed=2),
    Sampling(temperature=1.5, top_k=0, top_p=0.8, seed=3),
    Sampling(temperature=2.0, top_k=20, top_p=0.6, seed=4),
    Sampling(temperature=1.0, top_k=1, top_p=1.0, seed=5),
    Sampling(temperature=1.0, top_k=1000, top_p=0.01, seed=6),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_tokens_follow_the_distribution_of_transformers(sampling: Sampling) -> None:
    row = logits()
    draws = 2000
    expected = expected_probabilities(row, sampling)
    counts = torch.bincount(
        torch.tensor([sample(row, sampling, position) for position in range(draws)]), minlength=len(row)
    )
    assert not counts[expected == 0].any()
    deviation = (expected * (1 - expected) * draws).sqrt()
    assert ((counts - expected * draws).abs() <= 4.5 * deviation + 1e-9).all()


def test_equal_logits_at_the_edge_of_top_k_all_stay() -> None:
    row = torch.tensor([0.0, 1.0, 1.0, 2.0])
    sampling = Sampling(temperature=1.0, top_k=2, top_p=1.0, seed=0)
    assert {sample(row, sampling, position) for position in range(200)} == {1, 2, 3}


def test_temperature_zero_and_almost_zero_are_greedy() -> None:
    row = logits(3) * 1000
    for temperature in (0.0, 1e-30):
        for position in range(20):
            assert sample(row, Sampling(temperature=temperature, top_k=0, top_p=1.0, seed=9), position) == row.argmax()


def test_noise_is_a_pure_function_of_seed_and_position() -> None:
    draws = {(seed, position): noise(seed, position) for seed in (0, 1, 2**63 - 1) for position in range(1000)}
    assert draws == {key: noise(*key) for key in draws}
    assert len(set(draws.values())) == len(draws)
    assert all(0 <= draw < 1 for draw in draws.values())
    assert abs(sum(draws.values()) / len(draws) - 0.5) < 0.02
    assert noise(0, 1) == 0.0 or noise(0, 1) != noise(1, 0)
