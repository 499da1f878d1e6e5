"""From logits to tokens, all of a step by the same operations. A token depends on its own row, its request, seed and
position, never on the batch.

The order is that of transformers, and of vLLM as far as it says the same: bias, repetition penalty, frequency and
presence penalty, all on raw logits and also when greedy; then temperature, top-k, top-p, min-p. (vLLM has min-p before
top-k and top-p.) transformers knows no frequency and presence penalties: they are OpenAI's, in vLLM's place. What may
not be chosen is left out after the penalties, which change none of it; vLLM does so before.

Nothing here waits for the device, and nothing is done row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from distkv.engine.sampling.draws import Numbers, Shape, Tables
from distkv.engine.sampling.seen import SeenTokens

# Beyond any logit, and far enough from the largest float64 that differences of two stay finite.
_HUGE = 1e300


def choose(logits: Tensor, tables: Tables, shape: Shape, seen: SeenTokens) -> Tensor:
    """int64 [R]: a token for each row of float32 logits [R, vocab], by one draw by inverse distribution in order of
    token id, or the likeliest one where the temperature is 0. All are on one device; `seen` learns what is new.

    Of logits of which one is NaN or infinity, vocab itself, or a token that has such a logit.
    """
    numbers = Numbers(*tables.numbers[:, :, None])
    scores = logits.double()
    if tables.bias_at is not None and tables.bias is not None:
        scores.view(-1).index_add_(0, tables.bias_at, tables.bias)
    if tables.seen_rows is not None:
        seen.update(tables.new_rows, tables.new_seen, tables.new_output)
        scores = _penalized(scores, numbers, tables.seen_rows, shape, seen)
    scores = _left_out(scores, tables)
    drawn = _drawn(_filtered(scores, numbers, tables, shape), numbers.noise)
    return torch.where(numbers.is_greedy[:, 0] > 0, scores.argmax(-1), drawn) if shape.has_greedy else drawn


def argmax(logits: Tensor) -> Tensor:
    """int64 [N]: the token of each row of float32 logits [N, vocab] when nothing but its likelihood counts; of equals
    the first. What is no number is the largest."""
    # numpy looks through a row in a tenth of the time that torch takes.
    return logits.argmax(-1) if logits.is_cuda else torch.from_numpy(logits.numpy().argmax(-1))


def checked(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Both int64 [N], of tokens that `choose` or `argmax` took of float32 logits [N, vocab]: what is none of the
    vocabulary as its last one; and the same tokens, but vocab where one, or its logit, is no finite number."""
    vocab_size = logits.shape[-1]
    known = tokens.clamp(max=vocab_size - 1)
    found = logits.gather(1, known[:, None])[:, 0]
    return known, torch.where(found.abs() < torch.inf, tokens, vocab_size)


def _penalized(scores: Tensor, numbers: Numbers, rows: Tensor, shape: Shape, seen: SeenTokens) -> Tensor:
    """Where all penalties of a row are neutral, so is this."""
    assert seen.seen is not None and seen.counts is not None
    if shape.has_repetition:
        repetition = numbers.repetition
        changed = torch.where(scores < 0, scores * repetition, scores / repetition).clamp_(-_HUGE, _HUGE)
        # What no grammar allows stays out.
        changes = (scores != -torch.inf).logical_and_(seen.seen.index_select(0, rows))
        scores = torch.where(changes, changed, scores)
    if shape.has_counted:
        counts = seen.counts.index_select(0, rows)
        scores = scores - numbers.frequency * counts
        scores -= numbers.presence * (counts > 0)
    return scores


def _left_out(scores: Tensor, tables: Tables) -> Tensor:
    """-inf for tokens that may not be chosen; forbidden ones and those that complete bad words may, if no other is
    left."""
    if tables.allowed_rows is not None and tables.allowed_at is not None:
        kept = torch.zeros(len(tables.allowed_rows), scores.shape[1], dtype=torch.bool, device=scores.device)
        kept.view(-1).index_fill_(0, tables.allowed_at, True)
        some = scores.index_select(0, tables.allowed_rows).masked_fill_(~kept, -torch.inf)
        scores = scores.index_copy(0, tables.allowed_rows, some)
    if tables.barred_at is not None:
        left = scores.clone()
        left.view(-1).index_fill_(0, tables.barred_at, -torch.inf)
        scores = torch.where(left.amax(-1, keepdim=True) == -torch.inf, scores, left)
    return scores


def _filtered(scores: Tensor, numbers: Numbers, tables: Tables, shape: Shape) -> Tensor:
    """Scores after temperature, at most 0 before, so that none overflows; -inf for tokens that cannot be drawn."""
    scores = (scores - scores.amax(-1, keepdim=True)).div_(numbers.temperature)
    if tables.top_k_rows is not None:
        scores = _of_rows(scores, tables.top_k_rows, lambda some: _top_k(some, tables, shape.most_k))
    if tables.top_p_rows is not None:
        scores = _of_rows(scores, tables.top_p_rows, lambda some: _top_p(some, tables))
    # The most likely token is always left and has score 0: the others' scores are logarithms of their shares of it.
    return scores.masked_fill_(scores < numbers.least, -torch.inf) if shape.has_least else scores


def _of_rows(scores: Tensor, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    if len(rows) == len(scores):
        return change(scores)
    return scores.index_copy(0, rows, change(scores.index_select(0, rows)))


def _top_k(scores: Tensor, tables: Tables, most_k: int) -> Tensor:
    assert tables.top_k_last is not None
    last = scores.topk(most_k, -1).values.gather(1, tables.top_k_last)
    return scores.masked_fill(scores < last, -torch.inf)


def _top_p(scores: Tensor, tables: Tables) -> Tensor:
    """Of equally likely ones at the edge those with the higher ids stay."""
    assert tables.top_p_rest is not None
    ascending, order = scores.sort(stable=True)
    rest = ascending.softmax(-1).cumsum_(-1) <= tables.top_p_rest
    rest[:, -1] = False
    return scores.scatter(1, order, ascending.masked_fill_(rest, -torch.inf))


def _drawn(scores: Tensor, noise: Tensor) -> Tensor:
    cumulative = scores.softmax(-1).cumsum_(-1)
    total = cumulative[:, -1:]
    # Below the total, whatever the rounding: so the token found has a probability.
    at = torch.minimum(noise * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, at, right=True)[:, 0]
