"""The same requests at the same moments to every contender, by turns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from distkv.bench.harness.alternate import Samples, Turns
from distkv.bench.harness.command import Say
from distkv.bench.pooling.load import Load
from distkv.bench.pooling.predicted import Play, of_all_rounds
from distkv.bench.pooling.seen import Seen
from distkv.bench.pooling.summary import FIRST_ROUNDS, SHORT_ROUNDS, TOKENS, at
from distkv.sim.outcome import Unloaded
from distkv.sim.trace import beginning_with, scaled


class Game:
    """Rounds of a load. unloaded: what its requests take one after the other. plays: what was played, in that order."""

    def __init__(self, load: Load, contenders: Mapping[str, Seen], unloaded: Unloaded, rounds: int, say: Say) -> None:
        self.plays: list[Play] = []
        self._load, self._contenders, self._unloaded = load, contenders, unloaded
        self._rounds, self._say = rounds, say
        self._turns = Turns()

    def play(self, rate: float, index: int) -> Mapping[str, float]:
        """A round at a rate, each of which begins elsewhere in the trace; the throughput of each contender."""
        self._say(f"{rate:g} requests/s, round {index + 1}")
        requests = self._load.requests
        turned = beginning_with(requests, index * len(requests) // self._rounds)
        arriving = scaled(turned[: self._load.num_at(rate)], tokens=1.0, per_s=rate)
        variants = {
            name: partial(one.play, arriving, rate, self._unloaded, f"{index} {rate:g}")
            for name, one in self._contenders.items()
        }
        self._turns.take(variants, index)
        self.plays.append(Play(rate, arriving))
        return {name: values[-1] for name, values in self._turns.samples[at(TOKENS, rate)].items()}

    def samples(self) -> Samples:
        """What was measured, and for what a round has too few requests of all rounds together."""
        samples = self._turns.samples
        for name, one in self._contenders.items():
            high = of_all_rounds(FIRST_ROUNDS, one.firsts_s) | of_all_rounds(SHORT_ROUNDS, one.shorts_s)
            for case, first_s in high.items():
                samples.setdefault(case, {})[name] = [first_s]
        return samples
