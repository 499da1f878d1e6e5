"""Requests of a trace: when each arrives, how long its prompt is and how much it generates."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from distkv.errors import ConfigError

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


class TraceRequest(msgspec.Struct, frozen=True):
    """One request. arrival_s: from the beginning of the trace."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.output_tokens


def read_trace(path: Path, count: int) -> list[TraceRequest]:
    """The first `count` requests of a CSV file with a head line that names COLUMNS, among others.

    Raises ConfigError for a file that cannot be read, or a line that is none.
    """
    requests: list[TraceRequest] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise ConfigError("trace", f"{path}: expected the columns {', '.join(COLUMNS)}, no {missing[0]}")
            for row in rows:
                requests.append(_request(row, f"{path}:{rows.line_num}"))
                if len(requests) == count:
                    break
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError("trace", f"{path} cannot be read: {error}") from None
    if not requests:
        raise ConfigError("trace", f"{path} has no requests")
    return sorted(requests, key=lambda one: one.arrival_s)


def drawn_trace(count: int, median_tokens: int, seed: int = 0) -> list[TraceRequest]:
    """Requests that arrive at random, one a second on average, with lengths of high variance: lognormal, prompts of a
    median of `median_tokens` and outputs of half of that, the longest some twenty times the median."""
    draw = random.Random(seed)
    requests, now_s = [], 0.0
    for _ in range(count):
        prompt, output = (
            max(1, round(min(20.0, draw.lognormvariate(0.0, 1.2)) * median))
            for median in (median_tokens, median_tokens / 2)
        )
        requests.append(TraceRequest(now_s, prompt, output))
        now_s += draw.expovariate(1.0)
    return requests


def scaled(requests: Sequence[TraceRequest], *, tokens: float, per_s: float | None = None) -> list[TraceRequest]:
    """The same with lengths times `tokens`, arriving `per_s` times a second on average, in the same rhythm."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    stretch = 1.0 if per_s is None or not span_s else (len(requests) - 1) / per_s / span_s
    return [
        TraceRequest(
            (one.arrival_s - requests[0].arrival_s) * stretch,
            max(1, round(one.prompt_tokens * tokens)),
            max(1, round(one.output_tokens * tokens)),
        )
        for one in requests
    ]


def _request(row: Mapping[str, str | None], where: str) -> TraceRequest:
    try:
        arrival_s, prompt, output = (float(row[name] or "") for name in COLUMNS)
    except ValueError:
        raise ConfigError("trace", f"{where}: expected numbers in {', '.join(COLUMNS)}") from None
    if not (math.isfinite(arrival_s) and arrival_s >= 0 and prompt >= 1 and output >= 1):
        raise ConfigError("trace", f"{where}: expected an arrival of at least 0 s and at least 1 token each way")
    return TraceRequest(arrival_s, int(prompt), int(output))
