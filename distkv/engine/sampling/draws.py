"""What the next tokens of sequences are drawn by, as tables: as many arrays, however many sequences there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor

from distkv.engine.sampling.seen import NONE, News, SeenTokens
from distkv.wire.messages.to_worker import Sampling


@dataclass(slots=True)
class Draw:
    """One token to draw. position: of the token. bad: last tokens of bad words whose others come just before it."""

    request_id: str
    sampling: Sampling
    position: int
    bad: Sequence[int] = ()


class Numbers(NamedTuple):
    """Of R draws, each float64 [R, 1]. temperature: 1 where there is none. is_greedy: 1 or 0. noise: in [0, 1).
    least: what a score must reach, as a logarithm of a share of the best one's probability."""

    temperature: Tensor
    is_greedy: Tensor
    noise: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    least: Tensor


class Tables(NamedTuple):
    """None stands for tables that no draw needs. Places are row · vocab + token, rows are places among the draws.

    numbers: float64 [7, R], see `Numbers`. bias_at, bias: places, and what is added there. new_rows, new_seen,
    new_output: see `News`. seen_rows: int64 [R], where `SeenTokens` has each. allowed_rows, allowed_at: who may have
    only some tokens, and the places of these, by place in `allowed_rows`. barred_at: places that are left out if others
    are left. top_k_rows, top_k_last: who keeps the best k, and k - 1, [T, 1]. top_p_rows, top_p_rest: who keeps the
    best of a probability, and what the others have, float64 [T, 1].
    """

    numbers: Tensor
    bias_at: Tensor | None = None
    bias: Tensor | None = None
    new_rows: Tensor | None = None
    new_seen: Tensor | None = None
    new_output: Tensor | None = None
    seen_rows: Tensor | None = None
    allowed_rows: Tensor | None = None
    allowed_at: Tensor | None = None
    barred_at: Tensor | None = None
    top_k_rows: Tensor | None = None
    top_k_last: Tensor | None = None
    top_p_rows: Tensor | None = None
    top_p_rest: Tensor | None = None

    def present(self) -> list[Tensor]:
        """Those that are needed."""
        return [table for table in self if table is not None]

    def placed(self, present: Sequence[Tensor]) -> Tables:
        """With these, which are elsewhere, instead of its own."""
        there = iter(present)
        return Tables(*(None if table is None else next(there) for table in self))  # type: ignore[arg-type]


class Shape(NamedTuple):
    """What of the tables decides which operations follow. most_k: of those who keep the best k. The others: whether any
    draw is greedy, has a `least`, a penalty of what was seen, one of how often it was."""

    most_k: int
    has_greedy: bool
    has_least: bool
    has_repetition: bool
    has_counted: bool


def tables_of(draws: Sequence[Draw], seen: SeenTokens, vocab_size: int) -> tuple[Tables, Shape]:
    """On the host. Raises MalformedMessage for a request with penalties whose history has gaps."""
    samplings = [draw.sampling for draw in draws]
    bias_at = [row * vocab_size + token for row, sampling in enumerate(samplings) for token in sampling.logit_bias]
    allowed = [row for row, sampling in enumerate(samplings) if sampling.allowed_token_ids]
    allowed_at = [
        place * vocab_size + token for place, row in enumerate(allowed) for token in samplings[row].allowed_token_ids
    ]
    barred_at = [
        row * vocab_size + token
        for row, draw in enumerate(draws)
        for token in (*draw.sampling.forbidden_token_ids, *draw.bad)
    ]
    top_k = [row for row, one in enumerate(samplings) if one.temperature > 0 and 0 < one.top_k < vocab_size]
    top_p = [row for row, one in enumerate(samplings) if one.temperature > 0 and one.top_p < 1]
    news = News()
    rows = [
        seen.row(draw.request_id, draw.position, one.prompt_tokens, news) if _is_penalized(one) else NONE
        for draw, one in zip(draws, samplings, strict=True)
    ]
    tables = Tables(
        numbers=_numbers(draws),
        bias_at=_places(bias_at),
        bias=_floats([value for sampling in samplings for value in sampling.logit_bias.values()]),
        new_rows=_places(news.empty),
        new_seen=_joined(news.seen),
        new_output=_joined(news.output),
        seen_rows=_places(rows) if any(rows) else None,
        allowed_rows=_places(allowed),
        allowed_at=_places(allowed_at),
        barred_at=_places(barred_at),
        top_k_rows=_places(top_k),
        top_k_last=_column(_places([samplings[row].top_k - 1 for row in top_k])),
        top_p_rows=_places(top_p),
        top_p_rest=_column(_floats([1 - samplings[row].top_p for row in top_p])),
    )
    shape = Shape(
        max((samplings[row].top_k for row in top_k), default=0),
        any(one.temperature == 0 for one in samplings),
        any(one.min_p > 0 and one.temperature > 0 for one in samplings),
        any(one.repetition_penalty != 1 for one in samplings),
        any(one.frequency_penalty != 0 or one.presence_penalty != 0 for one in samplings),
    )
    return tables, shape


def noise(seed: int, position: int) -> float:
    """A number in [0, 1) that is a pure function of both arguments, 0 ≤ each < 2**64."""
    digest = xxhash.xxh3_64_intdigest(seed.to_bytes(8, "little") + position.to_bytes(8, "little"))
    return (digest >> 11) / float(1 << 53)


def is_greedy(sampling: Sampling) -> bool:
    """Whether the token is the argmax of its raw logits."""
    leaves_out = bool(sampling.allowed_token_ids or sampling.forbidden_token_ids or sampling.bad_words)
    return sampling.temperature == 0 and not (sampling.logit_bias or _is_penalized(sampling) or leaves_out)


def completing(sampling: Sampling, history: Tensor) -> list[int]:
    """The last tokens of bad words whose others the output ends with. history: int64 [position], all tokens before."""
    longest = max(map(len, sampling.bad_words)) - 1
    end = tuple(history[max(sampling.prompt_tokens, len(history) - longest) :].tolist())
    # A word that is longer than the output cannot be its end.
    return [
        word[-1]
        for word in sampling.bad_words
        if len(word) <= len(end) + 1 and end[len(end) + 1 - len(word) :] == word[:-1]
    ]


def _is_penalized(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


def _numbers(draws: Sequence[Draw]) -> Tensor:
    """In the order of `Numbers`."""
    samplings = [draw.sampling for draw in draws]
    columns = (
        [one.temperature or 1.0 for one in samplings],
        [one.temperature == 0 for one in samplings],
        [noise(draw.sampling.seed, draw.position) for draw in draws],
        [one.repetition_penalty for one in samplings],
        [one.frequency_penalty for one in samplings],
        [one.presence_penalty for one in samplings],
        [math.log(one.min_p) if one.min_p > 0 else -math.inf for one in samplings],
    )
    return torch.from_numpy(np.array(columns, np.float64))


def _places(values: Sequence[int]) -> Tensor | None:
    return torch.tensor(values, dtype=torch.int64) if values else None


def _floats(values: Sequence[float]) -> Tensor | None:
    return torch.tensor(values, dtype=torch.float64) if values else None


def _column(values: Tensor | None) -> Tensor | None:
    return None if values is None else values[:, None]


def _joined(parts: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> Tensor | None:
    joined = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return torch.from_numpy(joined) if len(joined) else None
