"""What became of the requests of a trace, and what they take that are alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from distkv.sim.token_times import TokenTimes
from distkv.sim.trace import TraceRequest

DEADLINE = "deadline"


class Outcome(msgspec.Struct):
    """What became of a request. times_s: when each token came, from when it was due. failed: why it did not end."""

    request: TraceRequest
    times_s: TokenTimes
    failed: str = ""

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.times_s[0]

    @property
    def per_token_s(self) -> float | None:
        """Mean time between its tokens; None if there is one at most."""
        if len(self.times_s) < 2:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)

    @property
    def is_late(self) -> bool:
        """Whether its deadline ended it."""
        return self.failed == DEADLINE

    @property
    def is_refused(self) -> bool:
        """Whether anything else did."""
        return bool(self.failed) and not self.is_late


class Unloaded(msgspec.Struct, frozen=True):
    """What requests take that are alone: the time to first token as a line over the prompt, the time per token."""

    first_s: float
    first_s_per_token: float
    per_token_s: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Unloaded:
        """By requests that were served one after the other, of which one at least had more tokens than one."""
        lengths = [float(one.request.prompt_tokens) for one in outcomes]
        slope, first_s = 0.0, statistics.fmean(one.first_s for one in outcomes)
        if len(set(lengths)) > 1:
            slope, first_s = statistics.linear_regression(lengths, [one.first_s for one in outcomes])
        per_token_s = statistics.median(one.per_token_s for one in outcomes if one.per_token_s is not None)
        return cls(max(0.0, first_s), max(0.0, slope), per_token_s)

    def __str__(self) -> str:
        return (
            f"first token {self.first_s:.3f} s + {1e3 * self.first_s_per_token:.2f} ms per token of the prompt, then "
            f"{1e3 * self.per_token_s:.1f} ms per token"
        )

    def first_of_s(self, request: TraceRequest) -> float:
        """The time to its first token."""
        return self.first_s + self.first_s_per_token * request.prompt_tokens

    def whole_of_s(self, request: TraceRequest) -> float:
        """The time to its last token."""
        return self.first_of_s(request) + self.per_token_s * (request.output_tokens - 1)

    def serves(self, outcome: Outcome) -> bool:
        """Whether a request was served as goodput wants: first token within five times the time alone and a second,
        each further one within twice the time alone."""
        if outcome.failed or not outcome.times_s:
            return False
        in_time = outcome.first_s <= 5 * self.first_of_s(outcome.request) + 1.0
        return in_time and (outcome.per_token_s or 0.0) <= 2 * self.per_token_s
