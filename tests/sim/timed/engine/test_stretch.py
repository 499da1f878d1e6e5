"""Decode steps of a modelled engine that are computed in one go."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.wire.messages.from_worker import StepResult
from tests.sim.timed.engine.test_engine import Bench, seq, step
from tests.sim.timed.parts import PROFILE, profile

PIPE_S = 1e-3
FIRST_S, EACH_S = 0.0201, 1e-6
"""The step of a sequence with 100 tokens, and by how much each further one is longer."""


class Alone:
    """One engine whose first result has been heard, and which goes on alone. kept: steps, and when they were heard."""

    def __init__(self, most: int, until: float = inf, of: object = PROFILE) -> None:
        self.bench = Bench("a", of)  # type: ignore[arg-type]
        self.engine = self.bench.engines[0]
        self.kept: list[tuple[int, float, float]] = []
        self.engine.receive(step(seq(99, 100)))
        self.engine.receive(step(seq(100, 101), step_id=2))
        self.bench.agenda.run(FIRST_S + PIPE_S)
        self.engine.repeat()
        self.engine.repeat_alone(most, until, PIPE_S, self._keep)

    def _keep(self, results: Sequence[StepResult], times: Sequence[float]) -> None:
        self.kept += [(one.step_id, one.compute_s, at) for one, at in zip(results, times, strict=True)]

    @property
    def replied(self) -> list[int]:
        """Steps that were answered one by one."""
        return [one.step_id for _, one in self.bench.replies["i0"] if isinstance(one, StepResult)]


def end_s(step_id: int) -> float:
    """When a step ends."""
    model = PerformanceModel(PROFILE)
    return sum(model.step_s(1, 99 + number, busy=False) for number in range(1, step_id + 1))


def test_all_but_the_last_are_told_of_together() -> None:
    alone = Alone(most=10)
    alone.bench.agenda.run()
    assert [number for number, _, _ in alone.kept] == list(range(2, 12))
    assert [took_s for _, took_s, _ in alone.kept] == pytest.approx(
        [FIRST_S + EACH_S * (number - 1) for number in range(2, 12)]
    )
    assert [at for _, _, at in alone.kept] == pytest.approx([end_s(number) + PIPE_S for number in range(2, 12)])
    assert alone.replied == [1, 12, 13]
    assert alone.bench.agenda.now() == pytest.approx(end_s(13))
    assert alone.engine.counters.steps == 13 and alone.engine.counters.model_s == pytest.approx(end_s(13))


@pytest.mark.parametrize(("after_s", "num_kept"), [(-0.01, 2), (0.5 * PIPE_S, 3), (0.01, 3)])
def test_what_comes_between_finds_what_has_been_computed(after_s: float, num_kept: int) -> None:
    """Around the end of the fourth step: before it, while its result is on its way, and while the fifth goes on."""
    alone = Alone(most=10)
    alone.bench.agenda.run(end_s(4) + after_s)
    assert not alone.kept
    alone.engine.settle()
    assert [number for number, _, _ in alone.kept] == list(range(2, 2 + num_kept))
    is_heard = after_s > PIPE_S or after_s < 0
    if not is_heard:
        alone.engine.repeat()  # by whom the last result is heard
    alone.bench.agenda.run()
    assert alone.replied == [1, *range(2 + num_kept, 4 + num_kept)]
    assert alone.bench.agenda.now() == pytest.approx(end_s(3 + num_kept))


def test_a_straggler_is_slow_from_its_next_step_on() -> None:
    alone = Alone(most=10)
    alone.bench.agenda.run(end_s(4) + 0.01)
    alone.engine.slow_down(3.0)
    alone.bench.agenda.run()
    assert len(alone.kept) == 3 and alone.replied == [1, 5, 6]
    assert alone.bench.agenda.now() == pytest.approx(end_s(5) + 3 * (FIRST_S + 5 * EACH_S))


def test_none_is_heard_of_in_this_way_when_it_is_time() -> None:
    alone = Alone(most=10, until=end_s(5))
    alone.bench.agenda.run()
    assert [number for number, _, _ in alone.kept] == [2, 3, 4]
    assert alone.replied == [1, 5, 6]


def test_steps_that_others_of_the_host_may_delay_are_computed_one_by_one() -> None:
    alone = Alone(most=10, of=profile(crowded_step_s=0.001))
    alone.bench.agenda.run()
    assert not alone.kept and alone.replied == [1, 2, 3]
