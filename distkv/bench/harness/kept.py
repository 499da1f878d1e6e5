"""What a benchmark has measured so far, so that an interrupt does not lose it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distkv.bench.harness.alternate import Samples
    from distkv.bench.harness.report import Result


class Kept:
    """Of one benchmark: samples of `keep`, and rows of `keep_rows`."""

    def __init__(self) -> None:
        self._samples: list[tuple[Samples, bool]] = []
        self._rows: list[Mapping[tuple[str, str], Result]] = []

    def add(self, samples: Samples, *, by_turns: bool) -> None:
        self._samples.append((samples, by_turns))

    def add_rows(self, rows: Mapping[tuple[str, str], Result]) -> None:
        self._rows.append(rows)

    @property
    def samples(self) -> Samples:
        """Of variants that took turns, those of whole rounds."""
        return {
            case: _whole_rounds(variants) if by_turns else {name: list(values) for name, values in variants.items()}
            for samples, by_turns in self._samples
            for case, variants in samples.items()
        }

    @property
    def num_cases(self) -> int:
        """Of samples and rows."""
        return sum(len(samples) for samples, _ in self._samples) + sum(map(len, self._rows))

    @property
    def rows(self) -> tuple[Result, ...]:
        return tuple(row for rows in self._rows for row in rows.values())


def _whole_rounds(variants: Mapping[str, list[float]]) -> dict[str, list[float]]:
    rounds = min(map(len, variants.values()))
    return {variant: values[:rounds] for variant, values in variants.items()}


_kept: ContextVar[Kept | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def keeping() -> Iterator[Kept]:
    """Within, `keep` and `keep_rows` keep what they are given."""
    kept = Kept()
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def keep(samples: Samples, *, by_turns: bool = False) -> Samples:
    """Samples that will grow, and count from now on, whatever ends the benchmark. by_turns: every variant has one value
    of each round, so what a round lacks it lacks of all. Returns them."""
    if (kept := _kept.get()) is not None:
        kept.add(samples, by_turns=by_turns)
    return samples


def keep_rows(rows: dict[tuple[str, str], Result]) -> dict[tuple[str, str], Result]:
    """The same for rows that are made otherwise than of samples."""
    if (kept := _kept.get()) is not None:
        kept.add_rows(rows)
    return rows
