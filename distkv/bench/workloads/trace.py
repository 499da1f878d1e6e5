"""Traces that are played: read from a file, or drawn."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from distkv.errors import ConfigError
from distkv.sim.trace import TraceRequest, parse_trace

Drawn = Literal["variance", "long", "even", "documents"]
DRAWN: tuple[Drawn, ...] = get_args(Drawn)
SPREAD, MOST = 0.5, 2.5
"""Of lognormal lengths around a median: sigma, and the longest in medians."""
SHORT_OUTPUT, LONG_OUTPUT = 4 / 3, 16
"""Medians of outputs, in medians of the prompt."""
LONG_OUTPUTS, LONG_PROMPTS = 0.2, 0.1
LONG_OF_LARGEST = 1.8
CHAT_PROMPT, CHAT_OUTPUT = 1 / 2, 2 / 3
"""Medians of chats beside documents, in medians of the prompt."""
DOCUMENTS = 1 / 3
DOCUMENT, LEAST_DOCUMENT, DOCUMENT_PROMPT = 12.5, 0.78, 0.8
"""The largest document with what is written of it, in medians; the smallest, of that; and how much of one is prompt."""
POOL_OF_LARGEST: Mapping[Drawn, float] = {
    "variance": 1.5,
    "long": 1.5 / LONG_OF_LARGEST,
    "even": 8.0,
    "documents": 1.5,
}
"""What a pool holds, in sizes of the trace's largest request."""
HIGH_VARIATION = 1.0
BLOCK_TOKENS = 16


def read_trace(path: Path, count: int | None = None) -> list[TraceRequest]:
    """The first `count` requests of a CSV file, or all, as `parse_trace` has them.

    Raises ConfigError for a file that cannot be read, or a line that is none.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse_trace(file, str(path), count)
    except (OSError, UnicodeError) as error:
        raise ConfigError("trace", f"{path} cannot be read: {error}") from None


def drawn_trace(kind: Drawn, count: int, median_tokens: int, seed: int = 0) -> list[TraceRequest]:
    """Requests that arrive at random, one a second on average, with prompts of a median of `median_tokens`; the same
    for the same arguments.

    variance: decode-heavy, so that memory limits the batch and not prefill; one output in five is twelve times as long
    as the others, as where some requests think before they answer, and nobody knows which. long: the same with one
    prompt in ten that makes its request 1.8 times as large as the largest of the others. even: all alike. documents:
    see `documents_trace`.
    """
    if kind == "documents":
        return documents_trace(count, median_tokens, seed)
    draw = random.Random(seed)
    arrivals_s = _arrivals_s(draw, count)
    if kind == "even":
        return [TraceRequest(at_s, median_tokens, 4 * median_tokens) for at_s in arrivals_s]
    requests = [_unlike(draw, at_s, median_tokens) for at_s in arrivals_s]
    if kind == "long":
        largest = round(LONG_OF_LARGEST * max(one.num_tokens for one in requests))
        for index in draw.sample(range(count), max(1, round(LONG_PROMPTS * count))):
            one = requests[index]
            requests[index] = TraceRequest(one.arrival_s, largest - one.output_tokens, one.output_tokens)
    return requests


def documents_trace(count: int, median_tokens: int, seed: int = 0, *, share: float = DOCUMENTS) -> list[TraceRequest]:
    """Chats, and a share of documents that are summarized or questioned, each more than half of a pool of 1.5 times the
    largest: an instance has room for one and a half. So it is where one service has both (001 Fig. 1 and Table 1:
    requests of some tokens to 60,000 and more; Mooncake's conversations: mean 12,400, standard deviation 15,800)."""
    draw = random.Random(seed)
    arrivals_s = _arrivals_s(draw, count)
    documents = set(draw.sample(range(count), max(1, round(share * count))))
    requests = []
    for index, at_s in enumerate(arrivals_s):
        if index in documents:
            tokens = draw.uniform(LEAST_DOCUMENT, 1.0) * DOCUMENT * median_tokens
            prompt = max(1, round(DOCUMENT_PROMPT * tokens))
            requests.append(TraceRequest(at_s, prompt, max(1, round(tokens) - prompt)))
        else:
            lengths = (_around(draw, median_tokens * part) for part in (CHAT_PROMPT, CHAT_OUTPUT))
            requests.append(TraceRequest(at_s, *lengths))
    return requests


def part_of(trace: Sequence[TraceRequest], count: int, seed: int) -> list[TraceRequest]:
    """`count` requests that follow each other, from anywhere in a trace that has as many; by the seed."""
    begin = random.Random(seed).randrange(len(trace) - count + 1)
    return list(trace[begin : begin + count])


def pool_of(requests: Sequence[TraceRequest], of_largest: float) -> int:
    """Tokens of a pool of so many times the largest request, in whole rBlocks."""
    return -(-int(of_largest * max(one.num_tokens for one in requests)) // BLOCK_TOKENS) * BLOCK_TOKENS


def varies_much(requests: Sequence[TraceRequest]) -> bool:
    """Whether the standard deviation of their sizes is at least their mean."""
    sizes = [one.num_tokens for one in requests]
    return statistics.pstdev(sizes) >= HIGH_VARIATION * statistics.fmean(sizes)


def _arrivals_s(draw: random.Random, count: int) -> list[float]:
    """At random, one a second on average, the first at 0."""
    arrivals_s, now_s = list[float](), 0.0
    for _ in range(count):
        arrivals_s.append(now_s)
        now_s += draw.expovariate(1.0)
    return arrivals_s


def _around(draw: random.Random, median: float) -> int:
    return max(1, round(min(MOST, draw.lognormvariate(0.0, SPREAD)) * median))


def _unlike(draw: random.Random, arrival_s: float, median_tokens: int) -> TraceRequest:
    thinks = draw.random() < LONG_OUTPUTS
    prompt, output = (
        _around(draw, median) for median in (median_tokens, median_tokens * (LONG_OUTPUT if thinks else SHORT_OUTPUT))
    )
    return TraceRequest(arrival_s, prompt, output)
