"""Overview: the debt graph and the counts are those of the ledger, whatever comes and goes, and cheap to look at."""

from __future__ import annotations

from random import Random

import pytest

from distkv.control.cluster.decisions import Decisions
from distkv.control.cluster.ledger import Entry
from distkv.control.cluster.overview import MAX_DEBTS, Overview
from distkv.wire.messages.to_gmanager import Debtor, Heartbeat
from tests.control.parts import calls, make_member


def entry(name: str, debtors: tuple[Debtor, ...] = (), state: str = "ready") -> Entry:
    made = Entry(make_member(name), 0.0)
    made.state = state  # type: ignore[assignment]
    made.heartbeat = Heartbeat(instance_id=name, incarnation=1, seq=1, base=0, full=True, debtors=debtors)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_ledger_says(seed: int) -> None:
    random, overview = Random(seed), Overview("contract")
    entries: dict[str, Entry] = {}
    for _ in range(200):
        name = f"i{random.randrange(6)}"
        if random.random() < 0.1:
            entries.pop(name, None)
            overview.drop(name)
        else:
            lent = tuple(Debtor(f"i{number}", random.randrange(4)) for number in random.sample(range(8), 3))
            entries[name] = entry(name, lent, random.choice(["ready", "dead", "draining"]))
            overview.file(entries[name])
        debts = {
            (debtor.instance_id, name): debtor.num_blocks
            for name, one in entries.items()
            if one.heartbeat is not None
            for debtor in one.heartbeat.debtors
            if debtor.num_blocks
        }
        overview.validate(entries, debts)
    state = overview.state(Decisions(), 0.0)
    assert (state.policy, state.num_instances) == ("contract", len(entries))
    assert {(one.debtor_id, one.creditor_id): one.num_blocks for one in state.debts} == debts
    assert [one.num_blocks for one in state.debts] == sorted(debts.values(), reverse=True)


@pytest.mark.parametrize("num_instances", [1_000, 10_000])
def test_it_costs_the_same_however_many_instances_there_are(num_instances: int) -> None:
    overview = Overview("contract")
    for number in range(num_instances):
        overview.file(entry(f"i{number}", tuple(Debtor(f"i{number + away}", away) for away in (1, 2, 3))))
    state = overview.state(Decisions(), 0.0)
    assert len(state.debts) == MAX_DEBTS and state.num_debts == 3 * num_instances
    assert state.lent_blocks == 6 * num_instances and state.debts[0].num_blocks == 3
    assert calls(lambda: overview.state(Decisions(), 0.0)) < 3 * MAX_DEBTS
    changed = entry("i7", (Debtor("i8", 5),))
    assert calls(lambda: overview.file(changed)) < 60
