"""What tokens are drawn from, one row at a time and as plainly as can be: a reference for all of a step at once."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Device
from distkv.engine.sampling.distribution import choose
from distkv.engine.sampling.draws import Draw, completing, noise, tables_of
from distkv.engine.sampling.history import Histories
from distkv.engine.sampling.seen import SeenTokens
from distkv.wire.messages.to_worker import Sampling

# Beyond any logit, and far enough from the largest float64 that differences of two stay finite.
_HUGE = 1e300


def sample_row(logits: Tensor, sampling: Sampling, position: int, history: Tensor | None = None) -> Tensor:
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
    forbidden = [*sampling.forbidden_token_ids, *_bad(sampling, history)]
    if not forbidden:
        return scores
    left = scores.index_fill(0, torch.tensor(forbidden, device=scores.device), -torch.inf)
    return torch.where(left.max() == -torch.inf, scores, left)


def _bad(sampling: Sampling, history: Tensor | None) -> list[int]:
    if not sampling.bad_words:
        return []
    assert history is not None, "a Step with bad words has no history"
    return completing(sampling, history)


def _filter(logits: Tensor, sampling: Sampling) -> Tensor:
    """float64 scores, -inf for tokens that cannot be drawn; at most 0 before, so that none overflows."""
    scores = (logits.double() - logits.max()) / sampling.temperature
    if 0 < sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        ascending, order = scores.sort(stable=True)
        rest = ascending.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        rest[-1] = False
        scores = scores.scatter(0, order, ascending.masked_fill(rest, -torch.inf))
    if sampling.min_p > 0:
        # The most likely token is always left and has score 0: the others' scores are logarithms of their shares of it.
        scores = scores.masked_fill(scores < math.log(sampling.min_p), -torch.inf)
    return scores


def sample(logits: Tensor, sampling: Sampling, position: int, history: Tensor | None = None) -> Tensor:
    """The same by the engine, in a batch of its own. history: int64 [position] or more."""
    return sample_rows(logits[None], [sampling], [position], [history])[0]


def sample_rows(
    logits: Tensor,
    samplings: Sequence[Sampling],
    positions: Sequence[int],
    histories: Sequence[Tensor | None],
    device: Device | None = None,
) -> Tensor:
    """By the engine, all at once: int64 [R], on the device of the logits, the host if none is given."""
    device = device or CpuDevice()
    known = Histories()
    seen = SeenTokens(known, logits.shape[1], logits.device)
    draws = []
    for row, (sampling, history) in enumerate(zip(samplings, histories, strict=True)):
        bad: Sequence[int] = ()
        if history is not None:
            known.write(str(row), 0, array("i", history.tolist()))
            bad = completing(sampling, history) if sampling.bad_words else ()
        draws.append(Draw(str(row), sampling, positions[row], bad))
    tables, shape = tables_of(draws, seen, logits.shape[1])
    return choose(logits, tables.placed(device.to_device(*tables.present())), shape, seen)
