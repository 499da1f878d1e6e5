"""How the keys of captured attention are divided: for contexts somewhat longer than they are, so that most steps divide
nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distkv.engine.step.graphs.device_tables import TakenTables
from distkv.kernels.attention.static_decode import StaticDecode

_LEAST_SLACK, _SLACK_SHARE = 256, 8
"""For contexts that grow by so many tokens, or by one part in so many."""


class Division:
    """Of the keys of one StaticDecode, from step to step."""

    def __init__(self, attention: StaticDecode, max_blocks: int, block_tokens: int, most_keys: int) -> None:
        """max_blocks: of a table. block_tokens: of a block. most_keys: that a row may see."""
        self._attention, self._max_blocks, self._block_tokens = attention, max_blocks, block_tokens
        self._most_keys = most_keys
        self._planned_for: TakenTables | None = None
        self._most_held = self._least_held = np.empty(0, np.int64)

    def fit(self, taken: TakenTables, keys: NDArray[np.int64]) -> None:
        """Divide anew, unless the last division holds. taken: the table of each row. keys: [N], how many each sees."""
        if taken is self._planned_for and ((keys <= self._most_held) & (keys >= self._least_held)).all():
            return
        self._planned_for = taken
        slack = np.maximum(keys // _SLACK_SHARE, _LEAST_SLACK)
        self._most_held = np.minimum(keys + slack, self._most_keys)
        self._least_held = self._most_held // 2 - _LEAST_SLACK
        firsts = taken.first_blocks * self._block_tokens
        self._attention.plan(taken.tables * self._max_blocks, firsts, self._most_held)
