"""Clusters under greedy: blocks leave before the wall is hit, nothing ping-pongs, nobody is debtor and creditor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distkv import events
from distkv.config import AdviceSettings
from distkv.control.cluster.planning.plans import COOL_S, JUDGE_S, UNDO_S
from distkv.control.commands import FromGManager
from distkv.control.plan.planned_moves import PlannedMoves
from distkv.sim.drawn.cluster import GMANAGER, SimCluster
from distkv.sim.drawn.fake_worker import expected_output
from distkv.types import PolicyName
from distkv.wire.messages.to_rmanager import HeartbeatAck, MoveKvcache, PlanEpoch
from tests.lanes import rest_is_slow
from tests.sim.history import PROFILE, STEP_S, live
from tests.sim.parts import check, prompt

SEEDS = rest_is_slow(range(3))


def greedy(pools: list[int], seed: int = 0, min_gain: float = 0.05, **fields: Any) -> SimCluster:
    """Instances that say how long their steps take, and what their hardware does."""
    advice = AdviceSettings(policy="greedy", greedy_min_gain=min_gain)
    cluster = SimCluster([], seed, advice=advice, profile=PROFILE, **fields)
    for index, slots in enumerate(pools):
        cluster.start(f"i{index}", slots)
        cluster.nodes[f"i{index}"].worker.step_s = STEP_S
    cluster.run(1.0)
    return cluster


def slowly(cluster: SimCluster, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
    """Let time pass with about as many steps as take STEP_S."""
    end = cluster.clock.now() + seconds
    while cluster.clock.now() < end:
        for _ in range(2 * len(cluster.nodes)):
            if until():
                return True
            cluster.deliver()
        cluster.tick()
    return bool(until())


def planned(cluster: SimCluster) -> list[events.MovePlanned]:
    return [event for _, event in cluster.events if isinstance(event, events.MovePlanned)]


def count(cluster: SimCluster, counter: str) -> int:
    return sum(getattr(node.rm.state.counters, counter) for node in cluster.nodes.values())


def both_sides(cluster: SimCluster) -> list[str]:
    """Instances that owe and lend at once."""
    return [
        name
        for name, node in cluster.nodes.items()
        if node.alive and node.rm.state.num_debts and node.rm.state.loans.num_blocks
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_leave_before_the_wall_is_hit(seed: int) -> None:
    """001 Fig. 5c: by plans, while slots are free, so that no request stands still or is preempted when its instance
    would be full."""
    cluster = greedy([200, 400, 400], seed, min_gain=0.9)
    cluster.submit("i0", "long", prompt(400), 700)
    state = cluster.nodes["i0"].rm.state
    least = state.pool.num_slots

    def done() -> bool:
        nonlocal least
        least = min(least, state.pool.num_free)
        return cluster.outcomes["long"].done

    assert slowly(cluster, 60.0, done)
    check(cluster, "long", prompt(400), 700)
    assert count(cluster, "planned_moves") >= 1 and least > 0, "there were free slots all the time"
    assert count(cluster, "preemptions") == count(cluster, "recomputed_tokens") == 0
    assert all(event.blocks <= 300 and event.gain_tokens_per_s > 0 for event in planned(cluster))
    cluster.settle()


def test_a_move_is_judged_by_what_came() -> None:
    cluster = greedy([200, 400, 400])
    cluster.submit("i0", "long", prompt(400), 700)
    assert slowly(cluster, 60.0, lambda: cluster.outcomes["long"].done)
    cluster.run(2 * JUDGE_S)
    judged = [event for _, event in cluster.events if isinstance(event, events.MoveJudged)]
    dropped = [event for _, event in cluster.events if isinstance(event, events.MoveDropped)]
    moves = [(one.request_id, one.blocks, one.gain_tokens_per_s) for one in planned(cluster)]
    assert judged and {(one.request_id, one.blocks, one.predicted_tokens_per_s) for one in judged} <= set(moves)
    assert len(judged) + len(dropped) == len(moves), "each is judged or was dropped"


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_is_not_carried_out_is_not_judged(is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that never arrive, and plans that every debtor drops, where nothing needs to be borrowed."""
    if is_lost:
        monkeypatch.setattr(PlannedMoves, "on_move", lambda self, move, now: None)
    else:
        monkeypatch.setattr(PlannedMoves, "_begin", lambda self, move, now: (0, "the test says so"))
    cluster = greedy([400, 400], min_gain=0.0)
    cluster.submit("i0", "long", prompt(400), 700)
    slowly(cluster, 60.0, lambda: cluster.outcomes["long"].done)
    cluster.run(2 * JUDGE_S)
    told = [event for _, event in cluster.events if isinstance(event, events.MoveJudged | events.MoveDropped)]
    assert len(told) == len(planned(cluster)) > 0
    assert all(isinstance(event, events.MoveDropped) for event in told)
    assert is_lost or {event.why for event in told} <= {"the test says so", "its request does not run at i0 any more"}
    assert is_lost or count(cluster, "infeasible_moves") == len(told)
    check(cluster, "long", prompt(400), 700)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_ping_pongs_and_nobody_is_debtor_and_creditor(seed: int) -> None:
    """Long and short requests anywhere, for a while: each request moves once in COOL_S at most, and back not before
    UNDO_S; an instance that owes lends nothing, at any moment."""
    cluster, random = greedy([60, 60, 120, 90], seed, min_gain=0.0), Random(seed)
    moved: dict[str, list[tuple[float, bool, str]]] = defaultdict(list)
    seen = 0

    def watch() -> list[str]:
        nonlocal seen
        for _, event in cluster.events[seen:]:
            if isinstance(event, events.MovePlanned):
                is_homeward = event.destination == event.debtor
                moved[event.request_id].append((cluster.clock.now(), is_homeward, event.destination))
            elif isinstance(event, events.MoveDropped):  # which may be planned again at once
                times = moved[event.request_id]
                times.remove(next(one for one in reversed(times) if one[2] == event.destination))
        seen = len(cluster.events)
        return both_sides(cluster)

    wanted = {}
    for number in range(16):
        request_id = f"r{number}"
        wanted[request_id] = prompt(random.choice([20, 60, 200]), number), random.choice([20, 60, 150])
        cluster.submit(f"i{random.choice([0, 0, 1, 2, 3])}", request_id, *wanted[request_id])
        assert not slowly(cluster, 0.4, watch), both_sides(cluster)
    done = slowly(cluster, 240.0, lambda: watch() or all(cluster.outcomes[name].done for name in wanted))
    assert done and both_sides(cluster) == []
    for request_id, (tokens, max_tokens) in wanted.items():
        check(cluster, request_id, tokens, max_tokens)
    assert count(cluster, "planned_moves") >= 1
    for times in moved.values():
        for (before, was_homeward, _), (at, is_homeward, _) in pairwise(times):
            least = COOL_S if was_homeward == is_homeward else UNDO_S
            assert at == before or at - before >= least - 0.01, "it moves to and fro"
    cluster.settle()


def test_a_creditor_reclaims_before_it_borrows() -> None:
    """i1 has lent most of its memory when a request comes that needs more than the rest: the loans come home or move
    on, and nothing is borrowed before."""
    cluster = greedy([60, 100, 100], min_gain=0.0)
    cluster.submit("i0", "guest", prompt(360), 40)
    assert slowly(cluster, 20.0, lambda: cluster.outcomes["guest"].tokens)
    creditor = next(name for name in ("i1", "i2") if cluster.nodes[name].rm.state.loans.num_blocks)
    cluster.submit(creditor, "own", prompt(380, 1), 10)
    assert slowly(cluster, 60.0, lambda: both_sides(cluster) or cluster.outcomes["own"].done)
    assert both_sides(cluster) == []
    cluster.finish()
    check(cluster, "guest", prompt(360), 40)
    check(cluster, "own", prompt(380, 1), 10)
    cluster.settle()


def test_without_profiles_nothing_is_planned() -> None:
    cluster = SimCluster([60, 100], advice=AdviceSettings(policy="greedy"))
    cluster.submit("i0", "r", prompt(200), 100)
    cluster.finish()
    check(cluster, "r", prompt(200), 100)
    assert planned(cluster) == []


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        ("greedy", 0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("even", 20), ("greedy", 10), ("greedy", 20))),
    ],
)
def test_any_history_keeps_every_promise(policy: PolicyName, first: int) -> None:
    """With plans of any age beside those of the gManager, and every fault; by `even` also of who lends and borrows."""
    histories = [live(seed, policy=policy) for seed in range(first, first + 10)]
    nodes = [node for history in histories for node in history.cluster.nodes.values()]
    assert sum(node.rm.state.counters.planned_moves for node in nodes) > 0
    assert sum(node.rm.state.counters.infeasible_moves for node in nodes) > 0
    assert any(planned(history.cluster) for history in histories)


# --- plans in any order


REQUESTS = st.integers(0, 5)
NAMES = ("i0", "i1", "i2")


class Plans(RuleBasedStateMachine):
    """Three instances, and a gManager whose plans are lost, come twice, late, or in another order; every invariant of
    instances, gManager and loans is checked after each event."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = greedy([16, 30, 24], min_gain=0.0, request_timeout_s=5.0)
        self.cluster.kill_gmanager()
        for name in NAMES:
            self.cluster.handle(name, FromGManager(HeartbeatAck(seq=0, policy="greedy")))
        self.wanted: dict[str, tuple[list[int], int]] = {}
        self.sent: list[tuple[str, MoveKvcache]] = []

    @rule(number=REQUESTS, at=st.sampled_from(NAMES), length=st.integers(1, 50), max_tokens=st.integers(1, 120))
    def submit(self, number: int, at: str, length: int, max_tokens: int) -> None:
        request_id = f"r{number}"
        if request_id not in self.wanted:
            self.wanted[request_id] = prompt(length, number), max_tokens
            self.cluster.submit(at, request_id, *self.wanted[request_id])

    @rule(number=REQUESTS)
    def cancel(self, number: int) -> None:
        if self.runs(f"r{number}"):
            self.cluster.cancel(f"r{number}")

    @rule(number=REQUESTS, destination=st.sampled_from(NAMES), num_blocks=st.integers(0, 12), age=st.integers(-1, 5))
    def plan(self, number: int, destination: str, num_blocks: int, age: int) -> None:
        """A plan comes into being; whether it arrives is another matter. age: in heartbeats."""
        owner = self.cluster.owner.get(f"r{number}", "i0")
        rm = self.cluster.nodes[owner].rm
        move = MoveKvcache(
            request_id=f"r{number}",
            num_blocks=num_blocks,
            destination=destination,
            epoch=PlanEpoch(1, len(self.sent) + 1),
            debtor_incarnation=1,
            seq=max(0, rm.newest_seq - age),
        )
        self.sent.append((owner, move))

    @rule(back=st.integers(0, 3))
    def arrive(self, back: int) -> None:
        """The newest plan, or one before it; perhaps for the second time."""
        if back < len(self.sent):
            owner, move = self.sent[-1 - back]
            state = self.cluster.nodes[owner].rm.state
            before = state.counters.planned_moves, state.counters.infeasible_moves
            self.cluster.handle(owner, FromGManager(move))
            after = state.counters.planned_moves, state.counters.infeasible_moves
            assert sum(after) >= sum(before) + 1, "a plan is begun or dropped, and counted"

    @rule(messages=st.integers(1, 40))
    def deliver(self, messages: int) -> None:
        for _ in range(messages):
            self.cluster.deliver()

    @rule(ticks=st.integers(1, 12))
    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.cluster.tick()
            self.cluster.deliver()

    @rule(pair=st.sampled_from([("i0", "i1"), ("i1", "i2"), ("i2", "i0")]))
    def cut(self, pair: tuple[str, str]) -> None:
        self.cluster.cut(*pair)

    @rule(name=st.sampled_from(NAMES), failing=st.booleans())
    def fail_pulls(self, name: str, failing: bool) -> None:
        self.cluster.fail_pulls(name, failing)

    @invariant()
    def nobody_is_both(self) -> None:
        assert both_sides(self.cluster) == []

    def runs(self, request_id: str) -> bool:
        return request_id in self.wanted and not self.cluster.outcomes[request_id].done

    def teardown(self) -> None:
        for name in NAMES:
            self.cluster.fail_pulls(name, False)
        self.cluster.restart_gmanager(GMANAGER)
        self.cluster.finish()
        for request_id, (tokens, max_tokens) in self.wanted.items():
            outcome = self.cluster.outcomes[request_id]
            expected = expected_output(tokens, max_tokens)
            assert outcome.tokens == expected[: len(outcome.tokens)]
            assert outcome.finish != "length" or outcome.tokens == expected
        self.cluster.settle(12)


TestPlans = Plans.TestCase
TestPlans.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
