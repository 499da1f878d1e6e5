"""What a play of a trace is worth: the figures of its outcomes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from distkv.bench.harness.quantile import p99
from distkv.sim.outcome import Outcome, Unloaded

TOKENS, GOODPUT = "output tokens/s", "goodput"
FIRST, FIRST_HIGH = "time to first token, median", "time to first token, p99"
FIRST_ROUNDS = "time to first token of all rounds, p99"
SHORT_HIGH = "time to first token of short requests, p99"
SHORT_ROUNDS = "time to first token of short requests of all rounds, p99"
EACH, EACH_HIGH = "time per token, median", "time per token, p99"
REFUSED, LATE = "refused", "over the deadline"
REMOTE, PREEMPTIONS = "remote share of attention", "preemptions"
UNITS: Mapping[str, str] = {
    TOKENS: "tokens/s",
    GOODPUT: "requests/s",
    FIRST: "s",
    FIRST_HIGH: "s",
    FIRST_ROUNDS: "s",
    SHORT_HIGH: "s",
    SHORT_ROUNDS: "s",
    EACH: "ms",
    EACH_HIGH: "ms",
    REFUSED: "requests",
    LATE: "requests",
    REMOTE: "of all keys",
    PREEMPTIONS: "times",
}


def at(case: str, rate: float) -> str:
    """The name of a case at so many requests per second."""
    return f"{case}, {rate:g}/s"


def unit(case: str) -> str:
    """Of a case at a rate."""
    return UNITS[case.rpartition(", ")[0]]


def summary(outcomes: Sequence[Outcome], unloaded: Unloaded, deadline_s: float) -> Iterator[tuple[str, float]]:
    """Rates are over the time from the first arrival to the last token. Times to first token are of all that were not
    refused, the deadline where none came; times per token of those that ended."""
    ended = [one for one in outcomes if not one.failed]
    took_s = max((one.request.arrival_s + one.times_s[-1] for one in outcomes if one.times_s), default=deadline_s)
    yield TOKENS, sum(len(one.times_s) for one in ended) / took_s
    yield GOODPUT, sum(map(unloaded.serves, outcomes)) / took_s
    if firsts := firsts_s(outcomes, deadline_s):
        yield from zip((FIRST, FIRST_HIGH), (statistics.median(firsts), p99(firsts)), strict=True)
    if short := firsts_s(shorts(outcomes), deadline_s):
        yield SHORT_HIGH, p99(short)
    if each := [1e3 * one.per_token_s for one in ended if one.per_token_s]:
        yield from zip((EACH, EACH_HIGH), (statistics.median(each), p99(each)), strict=True)
    yield REFUSED, float(sum(one.is_refused for one in outcomes))
    yield LATE, float(sum(one.is_late for one in outcomes))


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """What counters say of the time between two readings."""
    found = {name: after[name] - before[name] for name in after}
    if found.get("attended_tokens"):
        yield REMOTE, found["remote_attended_tokens"] / found["attended_tokens"]
    if found:
        yield PREEMPTIONS, float(found["preemptions"])


def shorts(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Of the requests below the median size."""
    median = statistics.median(one.request.num_tokens for one in outcomes)
    return [one for one in outcomes if one.request.num_tokens < median]


def firsts_s(outcomes: Sequence[Outcome], deadline_s: float) -> list[float]:
    """Times to first token of all that were not refused, the deadline where none came."""
    return [one.first_s if one.times_s else deadline_s for one in outcomes if not one.is_refused]
