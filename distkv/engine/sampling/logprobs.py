"""How likely tokens were: natural logarithms of the softmax of raw logits, before penalties, temperature, filters.

Where an output follows a grammar, what it cannot have is masked out of these logits, as vLLM does, and is not told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distkv.types import TokenLogprobs

ROWS_AT_ONCE = 256
"""Logits of a long chunk would take more memory than its KV: rows × vocabulary × 4 bytes."""


class Scored(NamedTuple):
    """Of N tokens, where the logits lie: token_ids int64 [N], logprobs float32 [N], ranks int64 [N]; best_ids int64
    [N, K] and best float32 [N, K], the K most likely ones instead of each."""

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor
    best_ids: Tensor
    best: Tensor


def score(logits: Tensor, token_ids: Tensor, top: int) -> Scored:
    """Token i, of int64 [N], in row i of float32 [N, vocab], with the `top` most likely of its row."""
    every = logits.log_softmax(-1)
    chosen = token_ids[:, None]
    ranks = (logits > logits.gather(1, chosen)).sum(-1) + 1
    best = logits.topk(min(top, logits.shape[-1]), dim=-1).indices
    return Scored(token_ids, every.gather(1, chosen)[:, 0], ranks, best, every.gather(1, best))


def score_in_slices(
    to_logits: Callable[[Tensor], Tensor], hidden: Tensor, token_ids: Tensor, top: int
) -> Iterator[Scored]:
    """As `score`, from hidden states [N, hidden], with the logits of few rows in memory at a time."""
    for first in range(0, len(token_ids), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        yield score(to_logits(hidden[rows]), token_ids[rows], top)


def read(scored: Scored, tops: Sequence[int]) -> list[TokenLogprobs]:
    """What is on the host by now, in words. tops: how many most likely ones are wanted of each, at most K."""
    columns = [part.tolist() for part in scored]
    return [
        TokenLogprobs(
            token_id,
            logprob,
            rank,
            tuple(pair for pair in zip(ids[:top], values, strict=False) if pair[1] > -torch.inf),
        )
        for token_id, logprob, rank, ids, values, top in zip(*columns, tops, strict=True)
    ]
