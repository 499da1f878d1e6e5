"""Decisions: the newest plans with what they were to bring and what they brought."""

from __future__ import annotations

from distkv import events
from distkv.control.cluster.decisions import MAX_PLANS, Decisions


def planned(request_id: str, gain: float) -> events.MovePlanned:
    return events.MovePlanned(request_id=request_id, debtor="a", destination="b", blocks=4, gain_tokens_per_s=gain)


def judged(request_id: str, achieved: float) -> events.MoveJudged:
    return events.MoveJudged(
        request_id=request_id,
        debtor="a",
        destination="b",
        blocks=4,
        predicted_tokens_per_s=5.0,
        achieved_tokens_per_s=achieved,
    )


def test_each_plan_has_what_it_brought_once_that_is_known() -> None:
    decisions = Decisions()
    decisions.note(planned("r", 5.0), 10.0)
    decisions.note(planned("r", 7.0), 11.0)
    decisions.note(events.Left(instance="a"), 11.5)
    decisions.note(judged("r", 4.0), 15.0)
    decisions.note(judged("other", 9.0), 15.0)
    shown = [(one.ago_s, one.predicted_tokens_per_s, one.achieved_tokens_per_s) for one in decisions.plans(16.0)]
    assert shown == [(5.0, 7.0, None), (6.0, 5.0, 4.0)] and decisions.num_plans == 2
    decisions.note(judged("r", 3.0), 16.0)
    assert decisions.plans(16.0)[0].achieved_tokens_per_s == 3.0


def test_a_plan_that_was_dropped_says_why_and_is_not_judged() -> None:
    decisions = Decisions()
    decisions.note(planned("r", 5.0), 10.0)
    dropped = events.MoveDropped(request_id="r", debtor="a", destination="b", blocks=4, why="it does not run")
    decisions.note(dropped, 10.5)
    decisions.note(planned("r", 7.0), 11.0)
    decisions.note(judged("r", 4.0), 16.0)
    shown = [(one.dropped, one.achieved_tokens_per_s) for one in decisions.plans(16.0)]
    assert shown == [("", 4.0), ("it does not run", None)]


def test_the_newest_are_remembered_and_all_are_counted() -> None:
    decisions = Decisions()
    for number in range(MAX_PLANS + 10):
        decisions.note(planned(f"r{number}", 1.0), float(number))
    shown = decisions.plans(100.0)
    assert (
        len(shown) == MAX_PLANS and shown[0].request_id == f"r{MAX_PLANS + 9}" and decisions.num_plans == MAX_PLANS + 10
    )


def test_a_run_says_what_came_home_once_it_has_ended() -> None:
    decisions = Decisions()
    decisions.note(events.DgfmBegun(run=1, members="a, b", blocks=8), 10.0)
    decisions.note(events.DgfmBegun(run=2, members="c, d", blocks=4), 11.0)
    decisions.note(events.DgfmEnded(run=1, members="a, b", predicted=8, blocks=6, why=""), 12.0)
    shown = [(one.members, one.predicted_blocks, one.home_blocks) for one in decisions.runs(13.0)]
    assert shown == [("c, d", 4, None), ("a, b", 8, 6)] and decisions.num_runs == 2
