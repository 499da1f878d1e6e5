"""Ledger: what the gManager believes, from heartbeats alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.control.cluster.ledger import Entry, Ledger
from distkv.control.cluster.policy.interface import InstanceView
from distkv.wire.messages.to_gmanager import (
    MAX_REPORTED,
    Debtor,
    Heartbeat,
    LongRequest,
    RequestPlacementEntry,
    as_sign_of_life,
)
from tests.control.parts import BLOCK, make_member
from tests.control.performance.profiles import make_profile


def beat(seq: int, base: int = 0, full: bool = False, placed: dict[str, int] | None = None, **fields: Any) -> Heartbeat:
    entries = tuple(
        RequestPlacementEntry(req_id=name, inst_id="a", num_blocks=count, local=True)
        for name, count in (placed or {}).items()
    )
    fields = {"instance_id": "a", "incarnation": 1, "total_blocks": 16} | fields
    return Heartbeat(seq=seq, base=base, full=full, entries=entries, **fields)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.add(Entry(make_member(name, total_blocks=16), 0.0, compat="model"))
    return ledger


def test_a_delta_needs_what_it_builds_on(ledger: Ledger) -> None:
    assert not ledger.apply(beat(4, base=3, placed={"r": 1}))
    assert ledger.placement() == {}
    assert ledger.apply(beat(5, full=True, placed={"r": 2, "s": 1}))
    assert not ledger.apply(beat(7, base=6, placed={"r": 3}))
    assert ledger.apply(beat(8, base=5, placed={"r": 3, "s": 0}))
    assert ledger.placement() == {"r": {"a": 3}}


def test_one_that_stands_by_knows_who_lives_and_then_wants_to_know_all(ledger: Ledger) -> None:
    """Also if it was in charge before, and the other one never answered meanwhile, so that deltas build on what it was
    told then."""
    ledger.apply(beat(5, full=True, placed={"r": 2}, free_blocks=7, debtors=(Debtor("b", 3),)))
    ledger.apply(as_sign_of_life(beat(6, base=5, placed={"r": 3}, free_blocks=6, debtors=(Debtor("b", 3),))))
    assert ledger.entries["a"].reported_free_blocks == 6 and not ledger.placement() and not ledger.debts()
    assert not ledger.apply(beat(7, base=5, placed={"r": 4}, free_blocks=5, debtors=(Debtor("b", 3),)))
    assert ledger.entries["a"].reported_free_blocks == 5 and not ledger.placement()
    assert ledger.debts() == {("b", "a"): 3}, "which is told whole each time"
    assert ledger.apply(beat(8, full=True, placed={"r": 4}))
    assert ledger.placement() == {"r": {"a": 4}}
    ledger.validate(1.0)


def test_an_older_one_changes_nothing(ledger: Ledger) -> None:
    ledger.apply(beat(5, full=True, placed={"r": 2}, free_blocks=7))
    assert ledger.apply(beat(4, full=True, placed={"r": 9}, free_blocks=1))
    assert ledger.apply(beat(5, full=True, placed={"r": 9}))
    assert ledger.placement() == {"r": {"a": 2}} and ledger.entries["a"].reported_free_blocks == 7


@given(
    st.lists(st.dictionaries(st.sampled_from("rst"), st.integers(0, 3)), min_size=2, max_size=8),
    st.permutations(range(1, 8)),
)
def test_whatever_order_deltas_since_one_base_come_in_the_newest_is_what_counts(
    states: list[dict[str, int]], order: list[int]
) -> None:
    ledger = Ledger()
    ledger.add(Entry(make_member("a"), 0.0))
    full = [{name: state.get(name, 0) for name in "rst"} for state in states]
    assert ledger.apply(beat(1, full=True, placed=full[0]))
    heard = [0]
    for index in order:
        if index < len(states):
            changed = {
                name: full[index][name]
                for name in "rst"
                if any(full[before][name] != full[index][name] for before in range(index))
            }
            assert ledger.apply(beat(index + 1, base=1, placed=changed))
            heard.append(index)
    newest = full[max(heard)]
    assert ledger.placement() == {name: {"a": count} for name, count in newest.items() if count}


def test_debts_are_what_creditors_say(ledger: Ledger) -> None:
    ledger.apply(beat(1, full=True, debtors=(Debtor("b", 3), Debtor("c", 0))))
    ledger.apply(beat(1, full=True, instance_id="b", debtors=(Debtor("a", 2),)))
    assert ledger.debts() == {("b", "a"): 3, ("a", "b"): 2}
    ledger.apply(beat(2, base=1))
    assert ledger.debts() == {("a", "b"): 2}


def test_the_dead_hold_nothing_and_report_everything_when_they_come_back(ledger: Ledger) -> None:
    ledger.apply(beat(1, full=True, placed={"r": 2}, debtors=(Debtor("b", 3),), lendable_blocks=5))
    ledger.forget("a")
    assert ledger.placement() == {} and ledger.debts() == {} and ledger.entries["a"].lendable == 0
    assert not ledger.apply(beat(2, base=1))
    assert ledger.apply(beat(3, full=True, placed={"r": 2}))
    assert ledger.placement() == {"r": {"a": 2}}


def test_a_refusal_is_newer_than_the_heartbeat_before_it(ledger: Ledger) -> None:
    ledger.apply(beat(1, full=True, lendable_blocks=9))
    ledger.refused("a", 2)
    ledger.refused("unknown", 2)
    assert ledger.entries["a"].lendable == 2
    ledger.refused("a", 2**40)
    assert ledger.entries["a"].lendable == 2, "what another says raises nothing"
    ledger.apply(beat(2, base=1, lendable_blocks=4))
    assert ledger.entries["a"].lendable == 4


def test_the_state_is_that_of_the_heartbeat_before_it_that_of_the_join(ledger: Ledger) -> None:
    entry = ledger.entries["a"]
    assert entry.reported_state == "ready"
    ledger.apply(beat(1, full=True, state="draining"))
    assert entry.reported_state == "draining"
    entry.compat = ""
    assert entry.reported_state == "starting", "who does not say what it serves"
    entry.member = make_member("a", state="dead")
    assert entry.reported_state == "dead"


def test_requests_on_their_way_count_until_a_heartbeat_names_them(ledger: Ledger) -> None:
    entry = ledger.entries["a"]

    def counted() -> tuple[int, int, int, int]:
        view = entry.view()
        return view.free_blocks, view.overdrawn_blocks, view.load, view.waiting

    assert counted() == (8, 0, 0, 0)
    ledger.promise("a", "r1", 4)
    ledger.promise("a", "r2", 1)
    assert counted() == (3, 0, 2, 0)
    ledger.promise("a", "r3", 6)
    assert counted() == (0, 3, 3, 0)
    ledger.apply(beat(1, full=True, free_blocks=8, arrived=("r3",)))
    assert counted() == (3, 0, 2, 0), "it was on its way before the others"
    ledger.apply(beat(2, full=True, free_blocks=6, running=1, waiting=3, arrived=("r1", "r2~1")))
    assert counted() == (6, 0, 4, 3)
    ledger.apply(beat(3, full=True, free_blocks=99))
    assert counted() == (16, 0, 0, 0), "never more than it joined with"


def test_a_view_says_what_the_heartbeat_said(ledger: Ledger) -> None:
    """Each number is another one, so that none can stand in the place of another."""
    numbers = set(Heartbeat.__struct_fields__) & set(InstanceView.__struct_fields__)
    told: dict[str, Any] = {name: 1000 + index for index, name in enumerate(sorted(numbers - {"instance_id", "state"}))}
    told |= {"waiting_sizes": (7,), "waiting_tokens": (70,), "longest": (LongRequest("r", 3, 4),), "free_blocks": 12}
    ledger.apply(beat(1, full=True, **told | {"total_blocks": 0}))
    ledger.entries["a"].predict_by(make_profile())
    view = ledger.entries["a"].view()
    assert {name: getattr(view, name) for name in told} == told | {"total_blocks": 16, "lendable_blocks": 16}
    assert (view.instance_id, view.state, view.host_key, view.block_tokens) == ("a", "starting", "host", BLOCK)
    assert (view.load, view.overdrawn_blocks) == (told["running"] + told["waiting"], 0)
    assert view.model is not None and view.profile == view.model.profile == make_profile()


def test_no_more_is_kept_than_an_instance_can_hold(ledger: Ledger) -> None:
    """Each entry has an rBlock of its pool; who tells of more is asked for all that there is."""
    assert ledger.apply(beat(1, full=True, placed={f"r{number}": 1 for number in range(MAX_REPORTED)}))
    taken = [ledger.apply(beat(seq, base=1, placed={f"s{seq}": 1})) for seq in range(2, 40)]
    assert taken.index(False) == 16 and len(ledger.entries["a"].placement) <= MAX_REPORTED
