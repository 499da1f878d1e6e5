"""How likely tokens were: natural logarithms of the softmax of raw logits, before penalties, temperature, filters.

Where an output follows a grammar, what it cannot have is masked out of these logits, as vLLM does, and is not told of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distkv.types import TokenLogprobs

ROWS_AT_ONCE = 256
"""Logits of a long chunk would take more memory than its KV: rows × vocabulary × 4 bytes."""


def logprobs_of(logits: Tensor, token_ids: Sequence[int], top: int) -> tuple[TokenLogprobs, ...]:
    """One for each of `token_ids`, token i of row i of float32 [N, vocab], with the `top` most likely of its row."""
    every = logits.log_softmax(-1)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    ranks = (logits > logits.gather(1, chosen)).sum(-1) + 1
    best = logits.topk(min(top, logits.shape[-1]), dim=-1).indices
    return tuple(
        TokenLogprobs(
            token_id, logprob, rank, tuple(pair for pair in zip(ids, values, strict=True) if pair[1] > -torch.inf)
        )
        for token_id, logprob, rank, ids, values in zip(
            token_ids,
            every.gather(1, chosen)[:, 0].tolist(),
            ranks.tolist(),
            best.tolist(),
            every.gather(1, best).tolist(),
            strict=True,
        )
    )


def logprobs_in_slices(
    to_logits: Callable[[Tensor], Tensor], hidden: Tensor, token_ids: Sequence[int], top: int
) -> tuple[TokenLogprobs, ...]:
    """As `logprobs_of`, from hidden states [N, hidden], with the logits of few rows in memory at a time."""
    return tuple(
        found
        for first in range(0, len(token_ids), ROWS_AT_ONCE)
        for found in logprobs_of(
            to_logits(hidden[first : first + ROWS_AT_ONCE]), token_ids[first : first + ROWS_AT_ONCE], top
        )
    )
