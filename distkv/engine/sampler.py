"""From logits to a token. A token depends on its own row, its seed and its position, never on the batch."""

from __future__ import annotations

import torch
import xxhash
from torch import Tensor

from distkv.wire.messages.to_worker import Sampling


def sample(logits: Tensor, sampling: Sampling, position: int) -> int:
    """Choose the token at `position` from float32 logits [vocab]. Temperature 0 is greedy.

    Else as the warpers of transformers: temperature, then top-k, then top-p; then one draw by inverse distribution in
    order of token id.
    """
    if sampling.temperature == 0:
        return int(logits.argmax())
    # Subtracting the peak first changes no probability and keeps a tiny temperature from overflowing.
    scores = (logits.double() - logits.max()) / sampling.temperature
    if 0 < sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        ascending, order = scores.sort()
        rest = ascending.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        rest[-1] = False
        scores = scores.index_fill(0, order[rest], -torch.inf)
    cumulative = scores.softmax(-1).cumsum(-1)
    drawn = noise(sampling.seed, position) * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, drawn, right=True))
    # Rounding may put the draw at the very end: take the last token that has a probability.
    return min(index, int(torch.isfinite(scores).nonzero()[-1]))


def noise(seed: int, position: int) -> float:
    """A number in [0, 1) that is a pure function of both arguments, 0 ≤ each < 2**64."""
    digest = xxhash.xxh3_64_intdigest(seed.to_bytes(8, "little") + position.to_bytes(8, "little"))
    return (digest >> 11) / float(1 << 53)
