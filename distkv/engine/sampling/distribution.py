"""From logits to a token. A token depends on its own row, its request, seed and position, never on the batch.

The order is that of transformers, and of vLLM as far as it says the same: bias, repetition penalty, frequency and
presence penalty, all on raw logits and also when greedy; then temperature, top-k, top-p, min-p. (vLLM has min-p before
top-k and top-p.) transformers knows no frequency and presence penalties: they are OpenAI's, in vLLM's place. What may
not be chosen is left out after the penalties, which change none of it; vLLM does so before.
"""

from __future__ import annotations

import math

import torch
import xxhash
from torch import Tensor

from distkv.wire.messages.to_worker import Sampling

# Beyond any logit, and far enough from the largest float64 that differences of two stay finite.
_HUGE = 1e300


def sample(logits: Tensor, sampling: Sampling, position: int, history: Tensor | None = None) -> Tensor:
    """Choose the token at `position` from float32 logits [vocab]; int64, without dimensions, where the logits lie, and
    without waiting for them. Temperature 0 is greedy.

    history: int64 [position], all tokens before it; needed for penalties and bad words. Otherwise one draw by inverse
    distribution in order of token id.
    """
    scores = _leave_out(_penalize(_bias(logits, sampling), sampling, history), sampling, history)
    if sampling.temperature == 0:
        return scores.argmax()
    scores = _filter(scores, sampling)
    cumulative = scores.softmax(-1).cumsum(-1)
    drawn = noise(sampling.seed, position) * cumulative[-1]
    index = torch.searchsorted(cumulative, drawn, right=True)
    # Rounding may put the draw at the very end: take the last token that has a probability.
    tokens = torch.arange(len(scores), device=scores.device)
    return torch.minimum(index, tokens.masked_fill(scores == -torch.inf, 0).max())


def is_greedy(sampling: Sampling) -> bool:
    """Whether the token is the argmax of its raw logits."""
    penalties = sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0
    leaves_out = bool(sampling.allowed_token_ids or sampling.forbidden_token_ids or sampling.bad_words)
    return sampling.temperature == 0 and not (sampling.logit_bias or penalties or leaves_out)


def argmax(logits: Tensor) -> Tensor:
    """int64 [N]: the token of each row of float32 logits [N, vocab] when nothing but its likelihood counts."""
    # numpy looks through a row in a tenth of the time that torch takes.
    return logits.argmax(-1) if logits.is_cuda else torch.from_numpy(logits.numpy().argmax(-1))


def noise(seed: int, position: int) -> float:
    """A number in [0, 1) that is a pure function of both arguments, 0 ≤ each < 2**64."""
    digest = xxhash.xxh3_64_intdigest(seed.to_bytes(8, "little") + position.to_bytes(8, "little"))
    return (digest >> 11) / float(1 << 53)


def _bias(logits: Tensor, sampling: Sampling) -> Tensor:
    if not sampling.logit_bias:
        return logits
    ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
    biases = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float64, device=logits.device)
    return logits.double().index_add(0, ids, biases)


def _penalize(logits: Tensor, sampling: Sampling, history: Tensor | None) -> Tensor:
    repetition, frequency, presence = (
        sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
    )  # fmt: skip
    if repetition == 1 and frequency == presence == 0:
        return logits
    assert history is not None, "a Step with penalties has no history"
    scores, history = logits.double(), history.to(logits.device)
    if repetition != 1:
        seen = scores[history]
        changed = torch.where(seen < 0, seen * repetition, seen / repetition).clamp(-_HUGE, _HUGE)
        seen = torch.where(seen == -torch.inf, seen, changed)  # what no grammar allows stays out
        scores = scores.index_put((history,), seen)
    if frequency != 0 or presence != 0:
        counts = history[sampling.prompt_tokens :].bincount(minlength=len(scores))
        scores = scores - frequency * counts - presence * (counts > 0)
    return scores


def _leave_out(scores: Tensor, sampling: Sampling, history: Tensor | None) -> Tensor:
    """-inf for tokens that may not be chosen; forbidden ones and those that complete bad words may, if no other is
    left."""
    if sampling.allowed_token_ids:
        allowed = torch.tensor(sampling.allowed_token_ids, device=scores.device)
        scores = torch.full_like(scores, -torch.inf).index_put((allowed,), scores[allowed])
    forbidden = [*sampling.forbidden_token_ids, *_completing(sampling, history)]
    if not forbidden:
        return scores
    left = scores.index_fill(0, torch.tensor(forbidden, device=scores.device), -torch.inf)
    return torch.where(left.max() == -torch.inf, scores, left)


def _completing(sampling: Sampling, history: Tensor | None) -> list[int]:
    """The last tokens of bad words whose others the output ends with."""
    if not sampling.bad_words:
        return []
    assert history is not None, "a Step with bad words has no history"
    longest = max(map(len, sampling.bad_words)) - 1
    end = tuple(history[max(sampling.prompt_tokens, len(history) - longest) :].tolist())
    # A word that is longer than the output cannot be its end.
    return [
        word[-1]
        for word in sampling.bad_words
        if len(word) <= len(end) + 1 and end[len(end) + 1 - len(word) :] == word[:-1]
    ]


def _filter(logits: Tensor, sampling: Sampling) -> Tensor:
    """float64 scores, -inf for tokens that cannot be drawn; at most 0 before, so that none overflows."""
    scores = (logits.double() - logits.max()) / sampling.temperature
    if 0 < sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        ascending, order = scores.sort()
        rest = ascending.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        rest[-1] = False
        scores = scores.scatter(0, order, ascending.masked_fill(rest, -torch.inf))
    if sampling.min_p > 0:
        # The most likely token is always left and has score 0: the others' scores are logarithms of their shares of it.
        scores = scores.masked_fill(scores < math.log(sampling.min_p), -torch.inf)
    return scores
