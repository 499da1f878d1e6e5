"""Contenders by turns, with the memory bandwidth around every sample and nobody else using the processors."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from distkv.bench.baselines.cases import Answer, Case
from distkv.bench.baselines.checkpoints import Model
from distkv.bench.baselines.process import BaselineFailed, CoresInUse, wait_until_idle
from distkv.bench.harness.alternate import Samples, alternate

OURS = "distkv"
LIMIT = "memory limit"
LONG_PROMPT_TOKENS = 4096


class Generate(Protocol):
    """Something that answers prompts."""

    def __call__(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Answer: ...


class Contender(msgspec.Struct, frozen=True):
    """One engine with one choice of settings. name: of both together."""

    name: str
    engine: str
    generate: Generate
    pids: tuple[int, ...]


class Comparison:
    """Samples of all cases so far, and what is to be known beside them.

    tried: rates of a warm-up in which each engine's best settings were found. chosen: those settings, by case and
    engine. left_out: why a contender has no rate in a case. cores_in_use: what was going on before every sample.
    first_tokens: of every case and prompt, by engine.
    """

    def __init__(
        self,
        model: Model,
        contenders: Sequence[Contender],
        bytes_per_s: Callable[[], float],
        patience_s: float,
        report: Callable[[str], None],
    ) -> None:
        self._model, self._bytes_per_s, self._patience_s, self._report = model, bytes_per_s, patience_s, report
        self._contenders = {one.name: one for one in contenders}
        self._first_s: dict[str, tuple[int, float]] = {}
        self._choice: dict[str, str] = {}
        self.samples: Samples = {}
        self.tried: dict[str, dict[str, float]] = {}
        self.chosen: dict[str, dict[str, str]] = {}
        self.left_out: dict[str, dict[str, str]] = {}
        self.bandwidths: list[float] = []
        self.cores_in_use: list[CoresInUse] = []
        self.first_tokens: dict[tuple[str, int], dict[str, list[int]]] = {}

    def run(self, case: Case, rounds: int) -> None:
        """Warm up, choose each engine's best settings, and sample by turns. Engines that fail are out from then on."""
        self.left_out[case.name] = {}
        chosen = self._choose(case)
        for attempt in itertools.count():
            limits: list[float] = []
            variants = {
                one.engine: partial(self._sample, case, one, itertools.count(1 + attempt * rounds), limits)
                for one in chosen
            }
            try:
                samples = alternate(
                    variants, rounds, warmups=0, report=lambda what: self._report(f"{case.name}, {what}")
                )
            except _Failed as failed:
                self._out(case, failed.contender, str(failed))
                chosen = [one for one in chosen if one.engine != failed.contender.engine]
                continue
            break
        self.chosen[case.name] = {one.engine: one.name for one in chosen}
        # What the table compares with all others comes first.
        for variants_of_case in samples.values():
            self.samples[case.name] = {engine: variants_of_case[engine] for engine in variants}
        if limits:
            self.samples[case.name][LIMIT] = limits

    def agreement(self, name: str) -> tuple[int, int]:
        """How many first tokens of this engine were distkv's, and of how many."""
        pairs = [
            (mine, ours)
            for answers in self.first_tokens.values()
            if name in answers and OURS in answers
            for mine, ours in zip(answers[name], answers[OURS], strict=True)
        ]
        return sum(mine == ours for mine, ours in pairs), len(pairs)

    def bandwidth_gb_per_s(self) -> Mapping[str, float]:
        """Of all reads around samples."""
        reads = [value / 1e9 for value in self.bandwidths] or [0.0]
        return {"median": statistics.median(reads), "min": min(reads), "max": max(reads)}

    def _choose(self, case: Case) -> list[Contender]:
        """One contender per engine: the fastest in a warm-up, or for a long prompt in the last one of this kind."""
        able = [one for one in self._contenders.values() if self._is_able(case, one)]
        if case.prompt_tokens > LONG_PROMPT_TOKENS:
            return _of_each_engine(able, lambda one: self._choice.get(f"{case.kind} {one.engine}") == one.name)
        rates: dict[str, float] = {}
        for one in able:
            self._report(f"{case.name}, warming up {one.name}")
            try:
                rates[one.name] = self._rate(case, one, 0)
            except BaselineFailed as failed:
                self._out(case, one, str(failed))
        self.tried[case.name] = rates
        left = [one for one in able if one.name in rates]
        best: dict[str, str] = {}
        for one in sorted(left, key=lambda one: rates[one.name]):
            best[one.engine] = one.name
        self._choice |= {f"{case.kind} {engine}": name for engine, name in best.items()}
        return _of_each_engine(left, lambda one: best[one.engine] == one.name)

    def _is_able(self, case: Case, one: Contender) -> bool:
        """Whether a sample is likely to end in time; a prompt twice as long takes almost thrice as long."""
        if one.engine == OURS or one.name not in self._first_s:
            return True
        tokens, first_s = self._first_s[one.name]
        expected_s = first_s * max(1.0, case.prompt_tokens * case.batch / tokens) ** 1.5
        if expected_s <= self._patience_s:
            return True
        why = f"its prompts would take about {expected_s:,.0f} s per sample, more than --patience {self._patience_s:g}"
        self.left_out[case.name][one.name] = why
        return False

    def _sample(self, case: Case, one: Contender, seeds: Iterator[int], limits: list[float]) -> Mapping[str, float]:
        """One sample; appends what memory would allow to `limits`, if that is asked of this contender."""
        others = [pid for other in self._contenders.values() if other.name != one.name for pid in other.pids]
        self.cores_in_use.append(wait_until_idle(others))
        before = self._bytes_per_s()
        try:
            rate = self._rate(case, one, next(seeds))
        except BaselineFailed as failed:
            raise _Failed(one, str(failed)) from failed
        around = (before, self._bytes_per_s())
        self.bandwidths += around
        if case.kind != "prefill" and (one.engine == OURS or OURS not in self._contenders):
            limits.append(case.batch * statistics.fmean(around) / self._model.step_bytes(case.mean_context, case.batch))
        return {case.name: rate}

    def _rate(self, case: Case, one: Contender, seed: int) -> float:
        answer = one.generate(case.prompts(self._model.vocab, seed), case.max_tokens)
        self._first_s[one.name] = case.prompt_tokens * case.batch, answer.first_s
        self.first_tokens.setdefault((case.name, seed), {})[one.engine] = [ids[0] for ids in answer.token_ids]
        return case.rate(answer)

    def _out(self, case: Case, one: Contender, why: str) -> None:
        self.left_out[case.name][one.name] = why
        del self._contenders[one.name]


class _Failed(Exception):
    def __init__(self, contender: Contender, why: str) -> None:
        super().__init__(why)
        self.contender = contender


def _of_each_engine(contenders: Sequence[Contender], preferred: Callable[[Contender], bool]) -> list[Contender]:
    """One per engine: that preferred, else its first."""
    chosen: dict[str, Contender] = {}
    for one in contenders:
        if one.engine not in chosen or preferred(one):
            chosen[one.engine] = one
    return list(chosen.values())
