"""DGFM: the gManager's runs, from a cycle in its ledger to the last member's answer."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from distkv import events
from distkv.config import AdviceSettings, MembershipSettings
from distkv.control.cluster.debts.dgfm import ANSWER_S, FREEZE_S, REFUSED_REST_S
from distkv.control.cluster.gmanager import GManager
from distkv.control.cluster.ledger import Entry, Ledger
from distkv.control.commands import Answer, GManagerCommand
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_gmanager import Debtor, Frozen, Heartbeat, Swapped
from distkv.wire.messages.to_rmanager import Freeze, Swap, Thaw
from tests.control.cluster.managed import Managed
from tests.control.parts import calls, make_member

RUN = PlanEpoch(1, 1)


def lend(managed: Managed, debts: dict[tuple[str, str], int], names: str = "abc") -> list[GManagerCommand]:
    """Heartbeats of these instances tell of these debts, and a period goes by; returns all that was said."""
    said: list[GManagerCommand] = []
    for name in names:
        debtors = tuple(Debtor(debtor, n) for (debtor, creditor), n in debts.items() if creditor == name)
        said += managed.beat(name, debtors=debtors)
    managed.commands = said + managed.tick(0.5)
    return managed.commands


def told(managed: Managed, kind: type[Any]) -> dict[str, Any]:
    """Messages of this type by the instance they went to."""
    return {
        command.route.decode(): command.body
        for command in managed.commands
        if isinstance(command, Answer) and isinstance(command.body, kind)
    }


def frozen(managed: Managed, name: str, num_blocks: int = 8, spare_blocks: int = 1, **fields: Any) -> None:
    usual = {"instance_id": name, "run": RUN, "num_blocks": num_blocks, "spare_blocks": spare_blocks}
    managed.hear(name, Frozen(**usual | fields))


def swapped(managed: Managed, name: str, num_blocks: int = 6) -> None:
    managed.hear(name, Swapped(instance_id=name, run=RUN, num_blocks=num_blocks))


RING = {("a", "b"): 9, ("b", "c"): 8, ("c", "a"): 7}


def begun(dgfm_min_blocks: int = 4) -> Managed:
    """A run of a, b and c has begun."""
    managed = Managed()
    managed.gm = GManager(MembershipSettings(), AdviceSettings(dgfm_min_blocks=dgfm_min_blocks))
    for name in "abc":
        managed.join(name)
    lend(managed, RING)
    return managed


def test_freeze_swap_thaw() -> None:
    managed = begun()
    assert told(managed, Freeze) == {
        debtor: Freeze(run=RUN, creditor_id=creditor, debtor_id=before, num_blocks=7, duration_s=FREEZE_S)
        for before, debtor, creditor in ("cab", "abc", "bca")
    }
    assert managed.events(events.DgfmBegun) == [events.DgfmBegun(run=1, members="a, b, c", blocks=21)]
    frozen(managed, "a", 7)
    frozen(managed, "b", 6, 0)
    assert told(managed, Swap) == {}
    frozen(managed, "c", 8)
    assert told(managed, Swap) == dict.fromkeys("abc", Swap(run=RUN, num_blocks=6)), "as much as the least of them"
    for name in "abc":
        assert told(managed, Thaw) == {}
        swapped(managed, name, 5 if name == "b" else 6)
    assert told(managed, Thaw) == dict.fromkeys("abc", Thaw(run=RUN))
    ended = events.DgfmEnded(
        run=1,
        members="a, b, c",
        predicted=21,
        blocks=17,
        why="the rest came home by itself, its requests ended, or others needed the memory",
    )
    assert managed.events(events.DgfmEnded) == [ended]


def test_its_members_rest_until_their_heartbeats_have_told_what_has_changed() -> None:
    managed = begun()
    for name in "abc":
        frozen(managed, name)
    for name in "abc":
        swapped(managed, name)
    managed.tick(1.8)
    assert told(managed, Freeze) == {}, "the ledger still has the debts of before"
    lend(managed, {("a", "b"): 3, ("b", "c"): 2})
    lend(managed, {("a", "b"): 3, ("b", "c"): 2})
    assert told(managed, Freeze) == {} and not managed.gm.ledger.debt_graph.is_suspicious
    lend(managed, RING)
    assert len(told(managed, Freeze)) == 3, "a new cycle"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"num_blocks": 0, "reason": "it is draining"}, "c: it is draining"),
        ({"num_blocks": 3}, "one of them could bring home 3 rBlocks only"),
        ({"spare_blocks": 0}, "none of them has a slot to begin with"),
        (None, f"c did not answer within {ANSWER_S:g} s"),
    ],
)
def test_what_comes_to_nothing_is_not_tried_again_at_once(answer: dict[str, Any] | None, why: str) -> None:
    managed = begun()
    for name in "ab":
        frozen(managed, name, spare_blocks=0)
    if answer is None:
        managed.tick(ANSWER_S + 0.1)
    else:
        frozen(managed, "c", **answer)
    assert managed.events(events.DgfmEnded)[0].why == why and len(told(managed, Thaw)) == 3
    runs = 0
    for _ in range(int(REFUSED_REST_S / 0.5) + 2):
        lend(managed, RING)
        runs += len(managed.events(events.DgfmBegun))
    assert runs == 1


@pytest.mark.parametrize(
    ("larger", "answer"),
    [
        ({("a", "b"): 9, ("b", "a"): 9}, {"num_blocks": 0, "reason": "it is draining"}),
        ({("a", "b"): 9, ("b", "a"): 9}, {"spare_blocks": 0}),
        ({("b", "c"): 9, ("c", "a"): 8, ("a", "b"): 8}, {"num_blocks": 0, "reason": "it is draining"}),
    ],
    ids=["refuses", "full", "a wider way back"],
)
def test_one_that_comes_to_nothing_keeps_no_smaller_one_from_being_swapped(
    larger: dict[tuple[str, str], int], answer: dict[str, Any]
) -> None:
    """They share a member, and the larger one was begun again and again, whenever all had rested."""
    managed = Managed()
    managed.gm = GManager(MembershipSettings(), AdviceSettings(dgfm_min_blocks=4))
    for name in "abc":
        managed.join(name)
    debts = {("c", "b"): 6} | ({("b", "c"): 6} | larger)
    begun: list[str] = []
    for _ in range(60):
        lend(managed, debts)
        begun += [event.members for event in managed.events(events.DgfmBegun)]
        for name, freeze in told(managed, Freeze).items():
            managed.hear(
                name, Frozen(instance_id=name, run=freeze.run, **{"num_blocks": 8} | (answer if name == "a" else {}))
            )
        if "b, c" in begun:
            break
    assert begun[-1] == "b, c" and len(begun) <= 3, begun


def test_a_member_that_says_nothing_more_ends_the_run_when_the_freeze_has_ended() -> None:
    managed = begun()
    for name in "abc":
        frozen(managed, name)
    swapped(managed, "a")
    since = managed.clock.now()
    ended: list[events.DgfmEnded] = []
    while not ended:
        lend(managed, RING)
        ended = managed.events(events.DgfmEnded)
    assert (ended[0].blocks, ended[0].why) == (6, "b, c did not say how much came home")
    assert FREEZE_S + ANSWER_S - 0.1 <= managed.clock.now() - since <= FREEZE_S + ANSWER_S + 0.5


@pytest.mark.parametrize(
    ("able", "home", "passed_s", "why"),
    [
        (7, 7, 1.0, ""),
        (6, 6, 1.0, "one of them could bring home 6 rBlocks only"),
        (7, 5, FREEZE_S, f"time was up after {FREEZE_S:g} s"),
    ],
)
def test_less_than_lay_in_the_cycle_is_said_with_the_reason(able: int, home: int, passed_s: float, why: str) -> None:
    managed = begun()
    for name in "abc":
        frozen(managed, name, able)
    managed.clock.advance(passed_s)
    for name in "abc":
        swapped(managed, name, home)
    (ended,) = managed.events(events.DgfmEnded)
    assert (ended.blocks, ended.predicted, ended.why) == (3 * home, 21, why)


def test_answers_that_are_not_of_the_run() -> None:
    managed = begun()
    frozen(managed, "a", run=PlanEpoch(2, 1))
    frozen(managed, "a", run=PlanEpoch(1, 2))
    swapped(managed, "a")
    managed.hear("z", Frozen(instance_id="a", run=RUN, num_blocks=8, spare_blocks=1))
    managed.hear("z", Swapped(instance_id="z", run=RUN, num_blocks=8))
    frozen(managed, "b")
    frozen(managed, "c")
    assert told(managed, Swap) == {}, "a has not frozen"
    frozen(managed, "a")
    assert len(told(managed, Swap)) == 3
    frozen(managed, "a", 0, reason="it is draining")
    swapped(managed, "a", 10**9)
    swapped(managed, "b")
    swapped(managed, "c")
    assert managed.events(events.DgfmEnded)[0].blocks == 7 + 6 + 6, "more than it was to bring home it cannot have"
    swapped(managed, "a")
    assert managed.commands == []


@pytest.mark.parametrize("state", ["draining", "dead"])
def test_who_leaves_is_in_no_run(state: str) -> None:
    managed = Managed()
    for name in "abc":
        managed.join(name)
    managed.beat("a", state="draining")
    managed.commands = lend(managed, RING, "bc")
    assert told(managed, Freeze) == {}
    if state == "dead":
        managed.tick(30.0)
        assert managed.gm.ledger.debt_graph.debts() == {} and not managed.gm.ledger.debt_graph.is_suspicious
    assert told(managed, Freeze) == {}


@pytest.mark.parametrize("settings", [AdviceSettings(policy="none"), AdviceSettings(dgfm_min_blocks=0)])
def test_who_does_not_want_it_has_none(settings: AdviceSettings) -> None:
    managed = Managed()
    managed.gm = GManager(MembershipSettings(), settings)
    for name in "abc":
        managed.join(name)
    lend(managed, RING)
    assert told(managed, Freeze) == {}


def test_who_does_not_know_freeze_is_left_out() -> None:
    """A member of a former version: it would let every run end without an answer, and its neighbours freeze in vain."""
    managed = Managed()
    managed.gm = GManager(MembershipSettings(), AdviceSettings(dgfm_min_blocks=4))
    for name in "abc":
        managed.join(name, swaps=name != "c")
    for _ in range(int(3 * (ANSWER_S + REFUSED_REST_S))):
        lend(managed, RING)
        lend(managed, RING)
        assert told(managed, Freeze) == {}
    assert not managed.gm.ledger.debt_graph.is_suspicious, "nothing is looked for over and over"
    lend(managed, RING | {("b", "a"): 9})
    assert told(managed, Freeze).keys() == {"a", "b"}, "those that know it go on without"
    managed.gm = GManager(MembershipSettings(), AdviceSettings(dgfm_min_blocks=4))
    for name in "abc":
        managed.join(name, swaps=name != "c")
    lend(managed, RING)
    managed.commands = managed.join("c") + managed.tick(0.5)
    assert told(managed, Freeze).keys() == {"a", "b", "c"}, "it is of this version now"


def test_a_cycle_below_the_least_size_is_left_alone() -> None:
    assert told(begun(8), Freeze) == {}


def test_disjoint_cycles_are_swapped_at_once_and_those_that_share_a_member_in_turn() -> None:
    managed = Managed()
    for name in "abcde":
        managed.join(name)
    debts = {("a", "b"): 9, ("b", "a"): 9, ("b", "c"): 8, ("c", "b"): 8, ("d", "e"): 5, ("e", "d"): 5}
    lend(managed, debts, "abcde")
    pairs = {frozenset((name, freeze.creditor_id)) for name, freeze in told(managed, Freeze).items()}
    assert pairs == {frozenset("ab"), frozenset("de")}


def test_a_heartbeat_costs_the_same_however_many_owe_each_other() -> None:
    cost = {}
    for size in (10, 1000):
        ledger, names = Ledger(), [f"i{number}" for number in range(size)]
        for number, name in enumerate(names):
            ledger.add(Entry(make_member(name), 0.0))
            ledger.apply(beat(name, 1, Debtor(names[number - 1], 4)))
        same, other = beat("i3", 2, Debtor("i2", 4)), beat("i3", 3, Debtor("i2", 5), Debtor("i7", 1))
        cost[size] = calls(partial(ledger.apply, same)), calls(partial(ledger.apply, other))
    assert cost[10] == cost[1000]


def beat(name: str, seq: int, *debtors: Debtor) -> Heartbeat:
    return Heartbeat(instance_id=name, incarnation=1, seq=seq, base=0, full=True, debtors=debtors)
