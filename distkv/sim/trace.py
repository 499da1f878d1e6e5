"""Requests of a trace: when each arrives, how long its prompt is and how much it generates; from CSV and as CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from distkv.errors import ConfigError

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
MOST = 1e9
"""Tokens of a request each way, or seconds of a trace: what is more than that is a mistake."""


class TraceRequest(msgspec.Struct, frozen=True):
    """One request. arrival_s: from the beginning of the trace."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.output_tokens


def parse_trace(lines: Iterable[str], name: str, count: int | None = None) -> list[TraceRequest]:
    """The first `count` requests, or all, of CSV lines whose head names COLUMNS, among others; in order of arrival.

    name: of the trace, for what is said of it. Raises ConfigError naming row and field for a line that is no request.
    """
    requests: list[TraceRequest] = []
    rows = csv.DictReader(lines)
    try:
        if missing := [column for column in COLUMNS if column not in (rows.fieldnames or ())]:
            raise ConfigError("trace", f"{name}: expected the columns {', '.join(COLUMNS)}, no {missing[0]}")
        for row in rows:
            requests.append(_request(row, f"{name}:{rows.line_num}"))
            if len(requests) == count:
                break
    except csv.Error as error:
        raise ConfigError("trace", f"{name}:{rows.line_num + 1}: {error}") from None
    if not requests:
        raise ConfigError("trace", f"{name} has no requests")
    return sorted(requests, key=lambda one: one.arrival_s)


def trace_lines(requests: Iterable[TraceRequest]) -> Iterator[str]:
    """Lines of CSV that `parse_trace` reads, each with its end; arrivals to the millisecond."""
    yield ",".join(COLUMNS) + "\n"
    for one in requests:
        yield f"{round(one.arrival_s, 3)},{one.prompt_tokens},{one.output_tokens}\n"


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


def beginning_with(requests: Sequence[TraceRequest], index: int) -> list[TraceRequest]:
    """The same requests, the one at `index` first; those before it come behind the last, after a usual pause."""
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    pause_s = (last_s - first_s) / max(1, len(requests) - 1)
    later = [
        TraceRequest(last_s + pause_s + one.arrival_s - first_s, one.prompt_tokens, one.output_tokens)
        for one in requests[:index]
    ]
    return [*requests[index:], *later]


def _request(row: Mapping[str, str | None], where: str) -> TraceRequest:
    arrival_s = _number(row, "arrival_s", where)
    return TraceRequest(arrival_s, _tokens(row, "prompt_tokens", where), _tokens(row, "output_tokens", where))


def _tokens(row: Mapping[str, str | None], field: str, where: str) -> int:
    tokens = _number(row, field, where)
    if tokens < 1 or not tokens.is_integer():
        raise ConfigError("trace", f"{where}: {field}: expected a whole number of at least 1, got {tokens:g}")
    return int(tokens)


def _number(row: Mapping[str, str | None], field: str, where: str) -> float:
    text = row[field]
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST:
        got = "nothing" if not text else repr(text) if len(text) <= 40 else f"{len(text)} characters"
        raise ConfigError("trace", f"{where}: {field}: expected a number from 0 to {MOST:g}, got {got}")
    return number
