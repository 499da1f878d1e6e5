"""A stretch of decode steps that nothing disturbs: each begins when the one before it ends, so that the ends of all of
them are known at once, and nothing has to happen for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distkv.sim.timed.engine.one_step import Running
from distkv.sim.timed.engine.step_work import StepTimes
from distkv.wire.messages.from_worker import StepResult

LEAST_STEPS = 2
"""Fewer are computed one by one."""
Keep = Callable[[Sequence[StepResult], Sequence[float]], None]
"""Takes results of steps, and when each is heard of."""


@dataclass(slots=True)
class Stretch:
    """first: the step that was under way when it began. ends: when that one ends, and those behind it; the last is
    computed as any other from its end on. pipe_s: until a result is heard of, and the Step after the next comes.
    keep: takes the results."""

    first: Running
    ends: Sequence[float]
    pipe_s: float
    keep: Keep

    def num_ended(self, now: float) -> int:
        """Steps that have ended by now, without the last."""
        return min(bisect_right(self.ends, now), len(self.ends) - 1)

    def took(self, num_steps: int) -> list[float]:
        """Seconds of each of the first of them."""
        begins = self.first.began_s, *self.ends[: num_steps - 1]
        return [end - began for began, end in zip(begins, self.ends[:num_steps], strict=True)] if num_steps else []


def stretch_from(
    first: Running, times: StepTimes, most: int, until: float, pipe_s: float, keep: Keep
) -> Stretch | None:
    """The steps from one under way on, which decodes only and has no creditors, if there are LEAST_STEPS: at most so
    many, and one, of which all but the last are heard of before `until`. The Step behind each must come while the next
    one is computed."""
    assert first.ends is not None
    work, ends = first.work, [first.ends.when]
    base_s, attention_s = times.base_s(work), times.model.attention_s
    tokens, decodes, factor = work.context_tokens, work.decodes, first.factor
    while len(ends) <= most and (heard_s := ends[-1] + pipe_s) < until:
        tokens += decodes
        end_s = ends[-1] + factor * (base_s + attention_s(tokens))
        if end_s <= heard_s:
            break
        ends.append(end_s)
    return Stretch(first, ends, pipe_s, keep) if len(ends) > LEAST_STEPS else None
