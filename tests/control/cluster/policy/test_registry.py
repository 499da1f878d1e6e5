"""Policies by name, and a gManager that has one of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distkv.config import MembershipSettings
from distkv.control.cluster.gmanager import GManager
from distkv.control.cluster.policy.contract import ContractPolicy
from distkv.control.cluster.policy.interface import Instances, InstanceView, Move
from distkv.control.cluster.policy.registry import POLICIES, policy_named
from distkv.control.commands import Answer, GManagerRequested, Publish, Tick
from distkv.errors import ConfigError
from distkv.events import MovePlanned
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.to_client import Located
from distkv.wire.messages.to_rmanager import Candidate, Creditors
from tests.control.parts import make_member


class LastOne:
    """Sends everything to the last instance by name, and would have all requests of the first moved there."""

    plans = True

    def dispatch(self, request: tg.Locate, instances: Instances) -> InstanceView | None:
        return max(instances.all(), key=lambda view: view.instance_id)

    def recommend(self, query: tg.BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        return sorted(instances.all(), key=lambda view: view.instance_id)[-1:]

    def plan(self, instances: Instances) -> Sequence[Move]:
        names = sorted(view.instance_id for view in instances.all())
        return [Move(request_id="r", debtor_id=names[0], creditor_id=names[-1], num_blocks=len(names))]


def test_a_policy_has_a_name() -> None:
    assert isinstance(policy_named("contract"), ContractPolicy)
    with pytest.raises(ConfigError, match="policy: expected one of contract, got 'contrat'"):
        GManager(MembershipSettings(), "contrat")


def test_the_gmanager_does_what_its_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "last", LastOne())
    gm = GManager(MembershipSettings(heartbeat_s=0.5), "last")
    for name in ("a", "c", "b"):
        gm.handle(GManagerRequested(name, name.encode(), tg.Join(member=make_member(name), compat="model")), 0.0)
    gm.handle(Tick(), 0.05)
    (answer,) = gm.handle(GManagerRequested("x", b"x", tg.Locate(request_id="r", num_tokens=9)), 0.1)
    assert answer == Answer(b"x", Located(request_id="r", instance_id="c", address="sim://c"))
    assert (gm.ledger.entries["c"].promised_blocks, gm.ledger.entries["c"].promised_requests) == (3, 1)
    (answer,) = gm.handle(
        GManagerRequested("a", b"a", tg.BorrowQuery(instance_id="a", borrow_id="q", num_blocks=2)), 0.2
    )
    assert answer == Answer(b"a", Creditors(borrow_id="q", candidates=(Candidate("c", 8),)))
    planned = Publish(MovePlanned(request_id="r", debtor="a", creditor="c", blocks=3))
    assert [gm.handle(Tick(), now) for now in (0.4, 0.5, 0.9, 1.0)] == [[], [planned], [], [planned]]
    assert gm.next_deadline() <= 1.5
    gm.validate()
