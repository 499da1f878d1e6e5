"""Which rates a trace is played at, how often, and what there was no time for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Play = Callable[[float, int], Mapping[str, float]]
"""All contenders play at a rate, in a round; the throughput of each."""

GROWTH = 1.1
MOST_DOUBLINGS = 12


class Rates:
    """Rounds of rising rates. given: the rates; if there are none, they double from `lowest` until no contender's
    throughput grows by a tenth. budget_s: a play is left out that would end later by `clock_s`, as long as it took
    before. played: what was, from the lowest rate on. saturated: whether no contender's throughput grew by a tenth
    with the last step of the rate."""

    def __init__(
        self,
        given: Sequence[float],
        lowest: float,
        rounds: int,
        clock_s: Callable[[], float],
        budget_s: float | None,
    ) -> None:
        self._given, self._lowest, self._rounds = given, lowest, rounds
        self._clock_s, self._budget_s = clock_s, budget_s
        self._took_s: dict[float, float] = {}
        self.left_out: list[str] = []
        self.saturated = False

    @property
    def played(self) -> tuple[float, ...]:
        """The rates, ascending."""
        return tuple(sorted(self._took_s))

    def run(self, play: Play) -> None:
        """One round of all rates, upwards; then more of them, first of those that goals are stated for: the highest
        and the lowest."""
        self._rise(play)
        middle = self.played[1:-1]
        order = list(dict.fromkeys((self.played[-1], self.played[0], *reversed(middle))))
        for index in range(1, self._rounds):
            for rate in order:
                if self._fits(self._took_s[rate]):
                    self._timed(play, rate, index)
                else:
                    self.left_out.append(f"round {index + 1} of {rate:g}/s")

    def _rise(self, play: Play) -> None:
        before: Mapping[str, float] = {}
        last_s = 0.0
        for rate in self._rising():
            if before and not self._fits(last_s):
                self.left_out.append(f"rates from {rate:g}/s on" if not self._given else f"{rate:g}/s")
                if not self._given:
                    return
                continue
            found = self._timed(play, rate, 0)
            last_s = self._took_s[rate]
            self.saturated = bool(before) and all(found[name] <= GROWTH * before[name] for name in found)
            if self.saturated and not self._given:
                return
            before = found

    def _rising(self) -> Iterable[float]:
        return sorted(self._given) or self._doubling()

    def _doubling(self) -> Iterator[float]:
        for doublings in range(MOST_DOUBLINGS):
            yield self._lowest * 2**doublings

    def _fits(self, needs_s: float) -> bool:
        return self._budget_s is None or self._clock_s() + needs_s <= self._budget_s

    def _timed(self, play: Play, rate: float, index: int) -> Mapping[str, float]:
        begun_s = self._clock_s()
        found = play(rate, index)
        self._took_s[rate] = self._clock_s() - begun_s
        return found
