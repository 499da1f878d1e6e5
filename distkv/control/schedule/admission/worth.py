"""Whether a request that its own instance can hold should borrow, or wait for memory at home.

A larger batch is worth something as long as a step of one more sequence takes little longer. A sequence with rBlocks
elsewhere has every step of its batch wait for partials, as long as it has them there (001 §5.2). Both are learned from
what steps took; as long as nothing is known, nothing is held against borrowing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FORGETTING = 0.98
"""Weight of what was known at each new step."""
OUTLIER = 3.0
"""A step counts for so many times what was expected at most."""
TRUSTED_STEPS = 4.0
"""So much weight an estimate has before it limits outliers."""
WAIT_WEIGHT = 0.2
"""Of a new measure of a wait for partials."""
WAIT_HALF_LIFE_S = 60.0
"""Nobody waits while nobody borrows: what is known of the wait counts for half after so long, so that it is tried
again."""
UNSEEN_WAIT = 0.4
"""Of a step: what partials are taken to cost before any were waited for, where no profile says it.

By judgement: a step that waits takes 1.4 times as long, so that the first avoidable borrow happens only where a batch
larger by one gains much, and what it costs is known afterwards. One table was measured (docs/benchmarks/decisions.md,
two instances on two cores): waits of 18 ms beside 28 ms of a step, 0.64, and of 10 ms beside 32, 0.31. To settle it:
`attend_wait_s` by `remote_steps`, over the seconds of a step that waits for nothing, for each model, kind of link and
number of cores; this should be the median of them."""
CAUTION = 1.5
"""What waits lose counts for so much more than what a larger batch gains: the batch may grow meanwhile, so that more
wait, and moves and serving cost others something.

By judgement, not measured: 1 would count neither of these costs, and the more it is, the less is borrowed. To settle
it: `distkv bench cluster` around saturation with 1, 1.25, 1.5, 2 and 3 in place of it, by turns beside lending off, on
a trace of high variance and on one where every request fits; the smallest that is nowhere below 0.98 of lending off is
right."""
LEAST_GAIN = 0.1
"""Of the seconds that an instance spends on a request, so much must be saved where all memory stays in demand: moves,
prefill over a link and those who come next and find less room are not in the sum.

By judgement, from simulations of `documents` and of the public traces (docs/benchmarks/decisions.md): without it a
load whose time is nearly all prefill (mooncake) had 0.97 of the throughput of lending off, with it 1.00."""


class StepTime:
    """Seconds of a step of decodes as a line over their number, fitted to the newest steps (001 eq. 5: what a step
    costs however many there are, and what each adds)."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def is_known(self) -> bool:
        """Whether any step was seen."""
        return self._weight > 0

    def observe(self, decodes: int, seconds: float) -> None:
        """A step of so many decodes took so long, beyond waits."""
        if self._weight >= TRUSTED_STEPS:
            seconds = min(seconds, OUTLIER * self.of(decodes))
        self._weight = FORGETTING * self._weight + 1.0
        self._x = FORGETTING * self._x + decodes
        self._y = FORGETTING * self._y + seconds
        self._xx = FORGETTING * self._xx + decodes * decodes
        self._xy = FORGETTING * self._xy + decodes * seconds

    def of(self, decodes: int) -> float:
        """Expected seconds. A sequence more costs nothing at least, and no more than one did on average."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        slope = 0.0
        if variance > 1e-9 * mean_x * mean_x:
            slope = (self._xy / self._weight - mean_x * mean_y) / variance
            slope = min(max(0.0, slope), mean_y / mean_x)
        return max(0.0, mean_y + slope * (decodes - mean_x))


@dataclass(frozen=True, slots=True)
class Choice:
    """A request could have memory of others now, or go on in `home_steps` with memory that comes free here.

    batch: sequences that run without it. is_remote: their steps wait for partials anyway. life_steps: how long it is
    expected to run. profiled_wait_s: what a profile says of the wait of a step that its rBlocks would cost; None
    without one. is_in_demand: others who wait need the memory that comes free here, too. prefill_s: what the prompt
    takes.
    """

    batch: int
    is_remote: bool
    home_steps: float
    life_steps: float
    profiled_wait_s: float | None = None
    is_in_demand: bool = False
    prefill_s: float = 0.0


class Worth:
    """What steps of one instance were seen to cost."""

    def __init__(self) -> None:
        self._local_step = StepTime()
        self._remote_step = StepTime()  # without their waits
        self._wait_s = 0.0
        self._waited_at = -math.inf
        self._counted_s = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything is known of what steps cost."""
        return self._local_step.is_known or self._remote_step.is_known

    def observe(
        self, decodes: int, *, has_chunks: bool, is_remote: bool, compute_s: float, attend_wait_s: float, now: float
    ) -> None:
        """A step took `compute_s`, 0 if that is not known. attend_wait_s: the worker's count of all waits so far."""
        waited_s = max(0.0, attend_wait_s - self._counted_s)
        self._counted_s = attend_wait_s
        if compute_s <= 0 or has_chunks or not decodes:
            return
        step = self._remote_step if is_remote else self._local_step
        step.observe(decodes, max(0.0, compute_s - waited_s))
        if is_remote:
            known_s = self.wait_s(now)
            self._wait_s = waited_s if known_s is None else known_s + WAIT_WEIGHT * (waited_s - known_s)
            self._waited_at = now

    def wait_s(self, now: float) -> float | None:
        """Seconds that a step is expected to wait for partials; None before any was waited for."""
        if self._waited_at == -math.inf:
            return None
        return float(self._wait_s * 0.5 ** ((now - self._waited_at) / WAIT_HALF_LIFE_S))

    def remote_s(self, decodes: int, now: float) -> float | None:
        """Seconds that a step of so many decodes is expected to take longer for asking creditors: its wait, and what
        such a step takes longer in itself, up to as long again; None before there was one."""
        wait_s = self.wait_s(now)
        if wait_s is None or not (self._local_step.is_known and self._remote_step.is_known):
            return wait_s
        local_s = self._local_step.of(decodes)
        longer_s = min(max(0.0, self._remote_step.of(decodes) - local_s), local_s)
        return wait_s + longer_s * float(0.5 ** ((now - self._waited_at) / WAIT_HALF_LIFE_S))

    def _step_s(self, decodes: int) -> float:
        return (self._local_step if self._local_step.is_known else self._remote_step).of(decodes)

    def pays(self, choice: Choice, now: float) -> bool:
        """Whether borrowing is expected to make more tokens than waiting: what the larger batch makes from the end of
        its prompt until there is room here, less CAUTION times what all lose to waits then, and what they lose
        afterwards if nobody leaves that room to its rBlocks. Where others would have that room, there is no afterwards:
        a batch larger by one that waits is compared with one that does not."""
        if not choice.batch or not self.is_known:
            return True
        joined = choice.batch + 1
        alone_s, joined_s, wait_s = self._step_s(choice.batch), self._step_s(joined), self.remote_s(joined, now)
        if alone_s <= 0:
            return True
        if wait_s is None:
            wait_s = UNSEEN_WAIT * alone_s if choice.profiled_wait_s is None else choice.profiled_wait_s
        if choice.is_remote:
            return joined / (joined_s + wait_s) > choice.batch / (alone_s + wait_s)
        if choice.is_in_demand:
            # What the instance spends on one request of a full batch: its prefill, and its share of the steps.
            spent_s = choice.prefill_s + choice.life_steps * alone_s / choice.batch
            then_s = choice.prefill_s + choice.life_steps * (joined_s + CAUTION * wait_s) / joined
            return then_s <= (1 - LEAST_GAIN) * spent_s
        lost_per_s = joined / joined_s - joined / (joined_s + wait_s)
        gain_per_s = joined / joined_s - choice.batch / alone_s - CAUTION * lost_per_s
        if gain_per_s <= 0 or choice.home_steps == math.inf:
            return gain_per_s > 0
        # It decodes once its prompt is computed, which takes as long now as then.
        gaining_steps = max(0.0, choice.home_steps - choice.prefill_s / alone_s)
        after_steps = max(0.0, choice.life_steps - gaining_steps)
        return gaining_steps * alone_s * gain_per_s > after_steps * joined_s * lost_per_s
