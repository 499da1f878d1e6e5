"""What serving takes of own steps: sums over some time, and what they say."""

from __future__ import annotations

from typing import NamedTuple

LEAST_S = 0.25
"""So much time of own steps must have been seen before anything is said."""


class Usage(NamedTuple):
    """step_s: time of own steps. served_s: what of it serving took. decode_s, decodes: time and number of those that
    gave own requests a token."""

    step_s: float = 0.0
    served_s: float = 0.0
    decode_s: float = 0.0
    decodes: float = 0.0

    def after(self, compute_s: float, served_s: float, is_decoding: bool, kept: float = 1.0) -> Usage:
        """With one step more. kept: how much what came before still counts."""
        decode_s, decodes = kept * self.decode_s, kept * self.decodes
        if is_decoding:
            decode_s, decodes = decode_s + compute_s, decodes + 1
        return Usage(kept * self.step_s + compute_s, kept * self.served_s + min(served_s, compute_s), decode_s, decodes)

    @property
    def is_enough(self) -> bool:
        """Whether it says anything."""
        return self.step_s >= LEAST_S

    @property
    def fraction(self) -> float:
        """Of the time of own steps, what serving takes; 0 while too little is known."""
        return min(1.0, self.served_s / self.step_s) if self.is_enough else 0.0

    @property
    def tpot_s(self) -> float:
        """Time per output token of own requests; 0 while too little is known."""
        return self.decode_s / self.decodes if self.decode_s >= LEAST_S else 0.0


NOTHING_SEEN = Usage()
