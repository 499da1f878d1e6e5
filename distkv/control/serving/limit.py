"""How much an instance serves its debtors, and whether that is too much for its own requests (000 §4.6).

Attention that is computed for debtors makes own steps longer. Two limits: `max_serve_fraction`, of the time of own
steps, and `max_tpot_s`, the time that own requests wait for a token. Beyond either the instance lends nothing more at
once, and after a while reclaims as much as brings it well below: all at once, by what was measured since the limit was
passed. When that is back it measures anew, and reclaims more if it must. As less is served by its own doing, it lends
again only after a pause, which doubles each time that lending brought it to its limit again. An instance that computes
nothing for itself serves as much as it is asked to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from distkv.control.serving.usage import NOTHING_SEEN, Usage

WINDOW_S = 1.0
"""Time of own steps over which both are averaged."""
LEAVE = 0.75
"""Of a limit: below this, memory is lent again."""
TARGET = 0.7
"""Of a limit: what is reclaimed brings serving to this."""
LEAST_SHARE = 0.05
"""Where serving takes less, taking memory back makes tokens no faster."""
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 32.0
"""In which nothing is lent after a limit was passed. It doubles, until lending went well for as long as it was."""
JUDGED_S = 0.5
"""How long is measured what a reclaim has changed."""


@dataclass(slots=True)
class ServingLimit:
    """Of one instance. Each event costs the same, whatever is lent.

    pause_s: how long the last one was, or is.
    """

    max_fraction: float
    max_tpot_s: float | None
    patience_s: float
    pause_s: float = 0.0
    _lately: Usage = NOTHING_SEEN
    _beyond: Usage = NOTHING_SEEN  # since a limit was passed, or what was reclaimed is back
    _last_total_s: float = 0.0
    _over_since: float = math.inf
    _paused_until: float = field(default=-math.inf)
    _is_limited: bool = False
    _rest_until: float = -math.inf

    # --- what is measured

    @property
    def fraction(self) -> float:
        """Of the time of own steps, what serving takes; 0 while too little is known."""
        return self._lately.fraction

    @property
    def tpot_s(self) -> float:
        """Time per output token of own requests; 0 while too little is known."""
        return self._lately.tpot_s

    @property
    def level(self) -> float:
        """How much of the tighter limit is used; above 1 it is passed."""
        by_fraction = self.fraction / self.max_fraction if self.max_fraction < 1 else 0.0
        return max(by_fraction, self.tpot_s / self.max_tpot_s if self.max_tpot_s is not None else 0.0)

    # --- events

    def on_step(self, compute_s: float, total_served_s: float, is_decoding: bool, now: float) -> None:
        """An own step took so long. total_served_s: what the worker has served within own steps since it began.
        is_decoding: whether requests got a token by it."""
        served_s, self._last_total_s = max(0.0, total_served_s - self._last_total_s), total_served_s
        self._lately = self._lately.after(compute_s, served_s, is_decoding, math.exp(-compute_s / WINDOW_S))
        if self.is_over:
            self._beyond = self._beyond.after(compute_s, served_s, is_decoding)
        if self._lately.served_s or self.max_tpot_s is not None or self._is_limited:
            self.look(now)
        else:  # nothing is used of any limit
            self._over_since = math.inf

    def on_idle(self) -> None:
        """No own request runs: nobody is hurt by serving. That the pauses were long is remembered."""
        self._lately = NOTHING_SEEN
        self._is_limited, self._over_since = False, math.inf

    def look(self, now: float) -> None:
        """Time went by."""
        level = self.level
        if level > 1:
            if not self._is_limited:
                went_well_s = now - self._paused_until
                self.pause_s = FIRST_PAUSE_S if went_well_s > self.pause_s else min(LONGEST_PAUSE_S, 2 * self.pause_s)
                self._is_limited = True
            self._paused_until = now + self.pause_s
            if not self.is_over:
                self._over_since, self._beyond = now, NOTHING_SEEN
        else:
            self._over_since = math.inf
            if self._is_limited and self.is_well and now >= self._paused_until:
                self._is_limited = False

    def next_deadline(self) -> float:
        """When `look` has something to do."""
        return self._paused_until if self._is_limited and self.is_well else math.inf

    # --- what follows

    @property
    def is_limited(self) -> bool:
        """Whether nothing more is lent."""
        return self._is_limited

    def retry_after_s(self, now: float) -> float:
        """Before which nothing is lent, as far as can be told; 0 if something is."""
        return max(0.0, self._paused_until - now) if self._is_limited else 0.0

    def why(self) -> str:
        """In words, which limit is reached."""
        if self.max_tpot_s is not None and self.tpot_s > LEAVE * self.max_tpot_s:
            return (
                f"its requests wait {1e3 * self.tpot_s:.3g} ms for a token, "
                f"of at most {1e3 * self.max_tpot_s:.3g} ms while it lends"
            )
        return (
            f"serving takes {self.fraction:.0%} of the time of its own steps, of at most {self.max_fraction:.0%}; "
            f"it lends again in {self.pause_s:.3g} s at the earliest"
        )

    def excess_blocks(self, served_blocks: int, now: float) -> int:
        """How many of the lent rBlocks that are served should go now; 0 unless a limit was passed for `patience_s`, and
        is still passed by what was measured since what was reclaimed before came back."""
        found = self._beyond
        if now < self.excess_deadline() or found.fraction < LEAST_SHARE:
            return 0
        share = 0.0
        if self.max_fraction < 1 and found.fraction > self.max_fraction:
            share = 1 - _per_own(TARGET * self.max_fraction) / _per_own(found.fraction)
        if self.max_tpot_s is not None and found.tpot_s > self.max_tpot_s:
            share = max(share, (found.tpot_s - TARGET * self.max_tpot_s) / (found.tpot_s * found.fraction))
        return math.ceil(min(1.0, share) * served_blocks)

    def measure_anew(self, now: float) -> None:
        """What was reclaimed is back, or nothing is to be: what comes now says what is too much."""
        if self._beyond.is_enough:
            self._beyond = NOTHING_SEEN
        self._rest_until = now + JUDGED_S

    def is_unserved(self, total_served_s: float) -> bool:
        """Whether own steps say nothing of serving: nothing was served within any that counts, nor by this total
        within the next, and how long they take alone has no limit."""
        return self.max_tpot_s is None and not self._lately.served_s and total_served_s == self._last_total_s

    @property
    def is_over(self) -> bool:
        """Whether a limit is passed now."""
        return self._over_since < math.inf

    @property
    def is_well(self) -> bool:
        """Whether so little is used of the limits that memory could be lent."""
        return self.level <= LEAVE

    @property
    def excess_since(self) -> float:
        """Since when a limit has been passed for too long."""
        return self._over_since + self.patience_s

    def excess_deadline(self) -> float:
        """When `excess_blocks` may say more than it does now."""
        return max(self.excess_since, self._rest_until)


def _per_own(fraction: float) -> float:
    """Time of serving by time that steps would take without it, where serving is this fraction of both."""
    return fraction / (1 - fraction) if fraction < 1 else math.inf
