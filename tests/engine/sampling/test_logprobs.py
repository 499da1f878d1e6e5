from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distkv.engine.sampling import logprobs
from distkv.engine.sampling.logprobs import read, score, score_in_slices
from distkv.types import TokenLogprobs


def rows(count: int, vocab: int = 50, seed: int = 0) -> Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def logprobs_of(logits: Tensor, token_ids: list[int], top: int) -> list[TokenLogprobs]:
    return read(score(logits, torch.tensor(token_ids), top), [top] * len(token_ids))


@pytest.mark.parametrize("top", [0, 1, 5, 50])
def test_they_are_the_logarithm_of_the_softmax(top: int) -> None:
    logits = rows(7)
    token_ids = list(range(3, 10))
    exact = logits.double().softmax(-1).log()
    for row, token_id, found in zip(exact, token_ids, logprobs_of(logits, token_ids, top), strict=True):
        order = row.sort(descending=True)
        assert found.token_id == token_id
        assert found.logprob == pytest.approx(float(row[token_id]), abs=1e-5)
        assert found.rank == order.indices.tolist().index(token_id) + 1
        assert [one for one, _ in found.top] == order.indices[:top].tolist()
        assert [value for _, value in found.top] == pytest.approx(order.values[:top].tolist(), abs=1e-5)


def test_equals_share_a_rank() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]]).expand(4, 4)
    assert [found.rank for found in logprobs_of(logits, [0, 1, 2, 3], 0)] == [3, 1, 1, 4]


def test_more_than_there_are_tokens_is_all_of_them() -> None:
    assert len(logprobs_of(rows(1, vocab=4), [0], 20)[0].top) == 4


@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
def test_slices_are_no_larger_than_allowed_and_change_nothing(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(logprobs, "ROWS_AT_ONCE", 4)
    weights, hidden, sizes = rows(8), rows(count, 8, seed=1), []

    def to_logits(some: Tensor) -> Tensor:
        sizes.append(len(some))
        return some @ weights

    slices = score_in_slices(to_logits, hidden, torch.arange(count), 2)
    found = [one for part in slices for one in read(part, [2] * len(part.ranks))]
    assert sum(sizes) == count and max(sizes, default=0) <= 4
    whole = logprobs_of(hidden @ weights, list(range(count)), 2)
    assert [one.top[0][0] for one in found] == [one.top[0][0] for one in whole]
    assert [one.logprob for one in found] == pytest.approx([one.logprob for one in whole], abs=1e-4)
