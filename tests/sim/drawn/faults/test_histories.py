"""Whatever happens to a cluster, every promise holds: random histories of requests and faults."""

from __future__ import annotations

import pytest

from tests.sim import history
from tests.sim.history import actions_of, live, shrunk

CHUNK = 25
SLOW_CHUNK = 100


def test_any_history_keeps_every_promise() -> None:
    """Invariants hold after every event (SimCluster checks), and at the end everything that was promised."""
    for seed in range(CHUNK):
        live(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [CHUNK, *range(1000, 1800, SLOW_CHUNK)])
def test_many_more_histories_keep_every_promise(first: int) -> None:
    for seed in range(first, first + SLOW_CHUNK):
        live(seed)


def test_histories_are_of_their_seeds_and_hold_every_kind_of_fault() -> None:
    assert actions_of(3) == actions_of(3) != actions_of(4)
    kinds = {action[0] for seed in range(200) for action in actions_of(seed)}
    assert kinds == {name for _, name, _ in history.ACTIONS}


def test_a_history_that_fails_says_how_to_live_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And shrinking leaves the actions that it takes to fail."""

    def run(self: history.History, seconds: float) -> None:
        if self.wanted:
            raise RuntimeError("it ran with a request")

    monkeypatch.setattr(history.History, "run", run)
    seed = next(seed for seed in range(100) if {a[0] for a in actions_of(seed)[:4]} >= {"submit", "run"})
    with pytest.raises(RuntimeError) as failure:
        live(seed)
    assert failure.value.__notes__ == [f"live it again: python -m tests.sim {seed}"]
    fewer = [action[0] for action in shrunk(seed)]
    assert len(fewer) == 2 and "submit" in fewer, "and something that lets time pass"
