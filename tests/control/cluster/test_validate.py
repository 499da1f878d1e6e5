"""GManager.validate: each check can fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.control.cluster.gmanager import GManager
from distkv.types import ServingState
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.envelope import ToGManager
from tests.control.cluster.managed import Managed
from tests.control.parts import make_member
from tests.examples import examples

ENTRY = tg.RequestPlacementEntry(req_id="r", inst_id="a", num_blocks=2, local=True)


@pytest.fixture
def managed() -> Managed:
    """`a` holds blocks and lends, `b` has left."""
    managed = Managed()
    for name in "ab":
        managed.join(name)
        managed.beat(name, entries=(msgspec.structs.replace(ENTRY, inst_id=name),), debtors=(tg.Debtor("x", 2),))
    managed.hear("b", tg.Leave(instance_id="b", incarnation=1))
    assert managed.states() == {"a": "ready", "b": "dead"}
    return managed


def rename(gm: GManager) -> None:
    gm.ledger.entries["a"].member = make_member("c")


def hear_in_the_future(gm: GManager) -> None:
    gm.ledger.entries["a"].heard_s = 1e6


def promise_less_than_nothing(gm: GManager) -> None:
    gm.ledger.promise("a", "r", -1)


def lend_less_than_nothing(gm: GManager) -> None:
    gm.ledger.refused("a", -1)


def hold_too_much(gm: GManager) -> None:
    gm.ledger.entries["a"].held = 7


def leave_unfiled(gm: GManager) -> None:
    gm.ledger.entries["a"].lendable = 1


def leave_load_unfiled(gm: GManager) -> None:
    gm.ledger.entries["a"].promises.add("r", 0, 0)


def move_unfiled(gm: GManager) -> None:
    gm.ledger.entries["a"].compat = "another"


def place_without_heartbeat(gm: GManager) -> None:
    gm.ledger.entries["a"].heartbeat = None


def change_incarnation(gm: GManager) -> None:
    gm.ledger.entries["a"].member = make_member("a", incarnation=2)


def hear_as_another(gm: GManager) -> None:
    entry = gm.ledger.entries["a"]
    assert entry.heartbeat is not None
    entry.heartbeat = msgspec.structs.replace(entry.heartbeat, instance_id="b")


def misfile_placement(gm: GManager) -> None:
    gm.ledger.entries["a"].placement["r", False] = ENTRY


def keep_empty_placement(gm: GManager) -> None:
    gm.ledger.entries["a"].placement["r", True] = msgspec.structs.replace(ENTRY, num_blocks=0)


def forget_an_instance(gm: GManager) -> None:
    gm.ledger.remove("b")


def change_state_unseen(gm: GManager) -> None:
    gm.ledger.entries["a"].state = "draining"
    gm.ledger.file(gm.ledger.entries["a"])


def look_at_one_no_more(gm: GManager) -> None:
    gm._deadlines.drop("a")


def lend_from_the_dead(gm: GManager) -> None:
    gm.ledger.entries["b"].lendable = 3


def place_on_the_dead(gm: GManager) -> None:
    gm.ledger.apply(tg.Heartbeat(instance_id="b", incarnation=1, seq=9, base=0, full=True))


def send_a_version_that_is_not_there(gm: GManager) -> None:
    gm._feed.sent_version += 1


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (rename, "c is filed as a"),
        (hear_in_the_future, "a was heard in the future"),
        (promise_less_than_nothing, "a promise below 0"),
        (lend_less_than_nothing, "a: a count below 0"),
        (place_without_heartbeat, "a holds blocks without a heartbeat"),
        (change_incarnation, "a has the heartbeat of another"),
        (hear_as_another, "a has the heartbeat of another"),
        (misfile_placement, "is filed as ('r', False)"),
        (keep_empty_placement, "a: an empty placement is kept"),
        (forget_an_instance, "members other than those in the ledger"),
        (look_at_one_no_more, "deadlines of others"),
        (hold_too_much, "a: more is held back than half of what it lends"),
        (leave_unfiled, "misfiled"),
        (leave_load_unfiled, "misfiled"),
        (move_unfiled, "live instances misfiled"),
        (change_state_unseen, "a is not ready any more"),
        (lend_from_the_dead, "b is dead and holds something"),
        (place_on_the_dead, "b is dead and holds something"),
        (send_a_version_that_is_not_there, "a version was sent that is not there"),
    ],
)
def test_each_check_can_fail(managed: Managed, damage: Callable[[GManager], None], complaint: str) -> None:
    managed.gm.validate()
    damage(managed.gm)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        managed.gm.validate()


def test_the_dead_hold_nothing_whatever_comes_late(managed: Managed) -> None:
    """A heartbeat behind the Leave, a refusal that names it, a join that says it is dead, which is refused."""
    managed.beat("b", entries=(msgspec.structs.replace(ENTRY, inst_id="b"),))
    managed.hear("a", tg.BorrowQuery(instance_id="a", borrow_id="q", num_blocks=1, refusals=(tg.Refusal("b", 3),)))
    managed.join("b", state="dead")
    assert managed.states() == {"a": "ready", "b": "dead"}
    assert managed.gm.ledger.entries["b"].is_empty


def test_a_state_of_a_later_version_neither_serves_nor_lends(managed: Managed) -> None:
    managed.join("c", state="hibernating")
    managed.hear("a", tg.Leave(instance_id="a", incarnation=1))
    assert managed.states() == {"a": "dead", "b": "dead", "c": "starting"}
    assert managed.locate().instance_id == "" and managed.candidates("x") == []


NAMES = st.sampled_from(["a", "b", "c"])
STATES = st.sampled_from(["starting", "ready", "draining", "unreachable", "dead", "hibernating"])
COUNTS = st.integers(0, 9)
INCARNATIONS = st.integers(1, 3)
PLACEMENT = st.lists(
    st.builds(
        tg.RequestPlacementEntry, req_id=st.sampled_from("rs"), inst_id=NAMES, num_blocks=COUNTS, local=st.booleans()
    ),
    max_size=3,
).map(tuple)
MESSAGES = st.one_of(
    st.builds(
        tg.Join,
        member=st.builds(make_member, NAMES, INCARNATIONS, COUNTS, state=STATES),
        compat=st.sampled_from(["", "model", "another"]),
    ),
    st.builds(tg.Leave, instance_id=NAMES, incarnation=INCARNATIONS),
    st.builds(
        tg.Heartbeat,
        instance_id=NAMES,
        incarnation=INCARNATIONS,
        seq=COUNTS,
        base=COUNTS,
        full=st.booleans(),
        entries=PLACEMENT,
        state=st.sampled_from(get_args(ServingState)),
        free_blocks=COUNTS,
        lendable_blocks=COUNTS,
        waiting=COUNTS,
    ),
    st.builds(
        tg.BorrowQuery,
        instance_id=NAMES,
        borrow_id=st.just("q"),
        num_blocks=COUNTS,
        refusals=st.lists(st.builds(tg.Refusal, NAMES, COUNTS), max_size=2).map(tuple),
    ),
    st.builds(tg.MembersQuery),
    st.builds(tg.Locate, request_id=st.just("r"), num_tokens=st.integers(0, 99), exclude=st.lists(NAMES).map(tuple)),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(NAMES, MESSAGES, st.sampled_from([0.0, 0.1, 2.0, 5.0, 301.0])), max_size=40))
def test_whatever_anybody_sends_its_state_holds(received: list[tuple[str, ToGManager, float]]) -> None:
    """By any connection, in anybody's name, in any order, with any time between."""
    managed = Managed()
    for sender, message, seconds in received:
        before = managed.gm.version
        managed.hear(sender, message)
        assert before <= managed.gm.version <= before + 1
        managed.tick(seconds)
