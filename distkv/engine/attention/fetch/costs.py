"""What attention over one creditor's keys costs a step, by the way it is done, and which way is taken.

Shipping a chunk's queries costs the step the time to send them and to wait for partials, fetching KV the time to wait
for it and to attend to it here: in both cases seconds of the step thread, whatever else goes on meanwhile. What they
depend on (the link, the creditor's load, own threads, how much local attention there is to hide behind) changes, so
they are measured as they come.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Way = Literal["ship", "fetch"]

_NEWEST = 0.25
"""Weight of the newest measurement."""
KEPT = 5
"""Measurements of a way and a size of work, of which the second least counts, of fewer the least: what the machine does
besides only ever makes a step take longer."""
EXPLORING_SHARE = 0.02
"""Of the time that the better way takes, what may be spent on learning what the other one takes now."""
EXPLORING_PAUSE = 16
"""Choices, at least, between two measurements of the other way."""
NEAR = 1.25
"""A way that was not measured at a size is tried there at once if it may take at most so many times the other one."""
_ROW_AS_BLOCKS, _BLOCK_AS_ROWS = 8, 16
"""To send a row takes about as long as to attend with it to so many rBlocks, and to send an rBlock as long as to attend
to it with so many rows. This decides only how measurements of works of different sizes are compared."""


@dataclass(frozen=True, slots=True)
class Work:
    """Query rows of a chunk that attend to so many rBlocks of a creditor. own_blocks: that they attend to here
    meanwhile, as far as the chunk has them: what shipping takes is hidden behind that."""

    rows: int
    blocks: int
    own_blocks: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Powers of two: works of one size are measured together."""
        return self.rows.bit_length(), self.blocks.bit_length()


Model = Callable[[Way, Work], float]
"""What a layer takes by a profile of this hardware, in seconds; measurements correct it."""


def proportional(way: Way, work: Work) -> float:
    """Without a profile: what was measured for other works, in proportion to this."""
    if way == "ship":
        return float(work.rows * (work.blocks + _ROW_AS_BLOCKS))
    return float(work.blocks * (work.rows + _BLOCK_AS_ROWS))


class _Measured:
    """work: that was measured last; ratio: of what was measured to what the model says."""

    __slots__ = ("_ratios", "ratio", "work")

    def __init__(self, work: Work, ratio: float) -> None:
        self._ratios: deque[float] = deque(maxlen=KEPT)
        self.took(work, ratio)

    def took(self, work: Work, ratio: float) -> None:
        """The newest one."""
        self.work = work
        self._ratios.append(ratio)
        self.ratio = sorted(self._ratios)[len(self._ratios) // KEPT]


@dataclass(slots=True)
class _Passed:
    """Choices in which a way was not taken since it was measured last, and what the other one took in them."""

    choices: int = 0
    seconds: float = 0.0


class OwnAttention:
    """What attention over own keys takes, for a row and an rBlock: so a chunk's over fetched ones is expected to."""

    def __init__(self) -> None:
        self._pairs = self._seconds = 0.0

    def took(self, pairs: float, seconds: float) -> None:
        """A layer over so many pairs of a row and an rBlock took so long."""
        self._pairs += pairs - _NEWEST * self._pairs
        self._seconds += seconds - _NEWEST * self._seconds

    def expected_s(self, work: Work) -> float:
        """Of a layer; 0 when nothing is known."""
        return work.rows * work.blocks * self._seconds / self._pairs if self._pairs else 0.0


class Costs:
    """Of one creditor. Used by one thread; an entry for each way and size of work, a few hundred at most.

    read_s_per_byte: of one-sided reads over its link; None while there was none.
    """

    def __init__(self, model: Model | None = None) -> None:
        """model: by which works are told from each other, and judged before they were seen."""
        self.read_s_per_byte: float | None = None
        self._model, self._is_profile = model or proportional, model is not None
        self._measured: dict[Way, dict[tuple[int, int], _Measured]] = {"ship": {}, "fetch": {}}
        self._passed: dict[tuple[Way, tuple[int, int]], _Passed] = {}

    def took(self, way: Way, work: Work, seconds: float) -> None:
        """A layer of this work took so much of the step thread's time."""
        ratio = seconds / self._model(way, work)
        known = self._measured[way].get(work.size)
        if known is None:
            self._measured[way][work.size] = _Measured(work, ratio)
        else:
            known.took(work, ratio)
        self._passed.pop((way, work.size), None)

    def read(self, num_bytes: int, seconds: float) -> None:
        """A one-sided read took so long."""
        newest, before = seconds / num_bytes, self.read_s_per_byte
        self.read_s_per_byte = newest if before is None else before + _NEWEST * (newest - before)

    def estimate_s(self, way: Way, work: Work) -> float | None:
        """What a layer of this work would take; None when nothing is known of it."""
        nearest = self._nearest(way, work)
        if nearest is None:
            return self._model(way, work) if self._is_profile else None
        return nearest[1].ratio * self._model(way, work)

    def choose(self, work: Work, read_bytes: int = 0, attend_s: float = 0.0) -> Way:
        """How a chunk attends to the creditor's keys.

        read_bytes: of a layer that would be read over the link; 0 where the creditor's pool is mapped here. attend_s:
        what attention over as many own keys would take; it counts until fetching was measured.
        """
        ship_s, fetch_s = self.estimate_s("ship", work), self.estimate_s("fetch", work)
        if ship_s is None:
            return "ship"
        read_s = self._read_s(read_bytes)
        if read_s is None:
            return "ship"
        if fetch_s is None:
            fetch_s = read_s + attend_s
        elif not self._is_seen("fetch", work):
            fetch_s = max(fetch_s, read_s)
        best: Way = "ship" if ship_s <= fetch_s else "fetch"
        other: Way = "fetch" if best == "ship" else "ship"
        best_s, other_s = min(ship_s, fetch_s), max(ship_s, fetch_s)
        return other if self._is_due(other, work, best_s, other_s) else best

    def _read_s(self, read_bytes: int) -> float | None:
        """What reading takes alone."""
        if not read_bytes:
            return 0.0
        return None if self.read_s_per_byte is None else read_bytes * self.read_s_per_byte

    def _is_due(self, way: Way, work: Work, best_s: float, this_s: float) -> bool:
        """Whether it is time to learn what the way that seems worse takes now."""
        if not self._is_seen(way, work):
            nearest = self._nearest(way, work)
            if nearest is not None:
                # What grows less than in proportion is overestimated from afar.
                measured_s = nearest[1].ratio * self._model(way, nearest[1].work)
                this_s = min(this_s, math.sqrt(this_s * measured_s))
            if this_s <= NEAR * best_s:
                return True
        passed = self._passed.setdefault((way, work.size), _Passed())
        passed.choices += 1
        passed.seconds += best_s
        return passed.choices > EXPLORING_PAUSE and this_s - best_s <= EXPLORING_SHARE * passed.seconds

    def _is_seen(self, way: Way, work: Work) -> bool:
        nearest = self._nearest(way, work)
        return nearest is not None and nearest[0] <= 1

    def _nearest(self, way: Way, work: Work) -> tuple[int, _Measured] | None:
        """The measurement of the size next to this one, and how far it is."""
        rows, blocks = work.size
        return min(
            ((abs(rows - at[0]) + abs(blocks - at[1]), one) for at, one in self._measured[way].items()),
            key=lambda found: found[0],
            default=None,
        )
