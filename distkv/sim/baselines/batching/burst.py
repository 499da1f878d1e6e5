"""Steps in which nothing but decoding happens, all at once: the batch is the same in each, every sequence has one token
more, so that all their ends are known when the first begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from distkv.control.schedule.chunking import Chunk
from distkv.sim.baselines.batching.served import Served
from distkv.sim.timed.engine.step_work import StepTimes, StepWork

MOST_STEPS = 256
"""At once. What comes in between ends a burst, and then the rest was for nothing."""


@dataclass(slots=True, eq=False)
class Burst:
    """Steps under way. ends: of each; the last may be taken back until the one before has ended. done: steps that are
    accounted for. decodes: sequences that compute one token in each. chunks: parts of prompts, of a burst of one step.
    """

    began_s: float
    ends: list[float]
    decodes: list[Served]
    chunks: list[tuple[Served, Chunk]] = field(default_factory=list)
    done: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all of its steps are accounted for."""
        return self.done == len(self.ends)


def step_work(times: StepTimes, decodes: Sequence[Served], chunks: Sequence[tuple[Served, Chunk]]) -> StepWork:
    """What a step with these asks of the engine."""
    work = StepWork(decodes=len(decodes), context_tokens=sum(one.length for one in decodes))
    for _, (start, end) in chunks:
        if end - start > 1:
            work.chunk_tokens += end - start
            work.chunk_attention_s += times.chunk_attention_s(start, end)
        else:
            work.decodes += 1
            work.context_tokens += end
    return work


def ends_of_steps(
    times: StepTimes, began_s: float, work: StepWork, steps: int, factor: float, rest_s: float
) -> list[float]:
    """When each of so many steps ends, of which the first has this work and each further one a token more of each
    sequence. factor: how many times as long they take as the profile says. rest_s: before each."""
    ends: list[float] = []
    now_s, base_s, attention_s = began_s, times.base_s(work), times.attention_s
    for _ in range(steps):
        now_s += rest_s + factor * (base_s + attention_s(work))
        ends.append(now_s)
        work.context_tokens += work.decodes
    return ends


def quiet_steps(decodes: Sequence[Served], block_tokens: int, free_blocks: int) -> int:
    """Steps, at least one, until a sequence has all its tokens, or there is no block for one that needs it. Each has
    the blocks for the first."""
    most = min(MOST_STEPS, *(one.left for one in decodes))

    def further_blocks(steps: int) -> int:
        last = steps - 2  # a step computes the last known token; of the first, blocks were taken
        return sum((one.length + last) // block_tokens + 1 - one.blocks for one in decodes)

    if most == 1 or further_blocks(most) <= free_blocks:
        return most
    return max(1, bisect_right(range(1, most + 1), free_blocks, key=further_blocks))
