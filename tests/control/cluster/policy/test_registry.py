"""Policies by name, and a gManager that has one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest

from distkv.config import AdviceSettings, MembershipSettings
from distkv.control.cluster.gmanager import GManager
from distkv.control.cluster.policy.contract import ContractPolicy
from distkv.control.cluster.policy.even import EvenPolicy
from distkv.control.cluster.policy.greedy import GreedyPolicy
from distkv.control.cluster.policy.interface import Balance, Instances, InstanceView, Move, RecentMoves
from distkv.control.cluster.policy.none import NoPolicy
from distkv.control.cluster.policy.registry import POLICIES, make_policy
from distkv.control.commands import Answer, Broadcast, GManagerRequested, Publish, Tick
from distkv.errors import ConfigError
from distkv.events import MovePlanned
from distkv.types import PolicyName
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_rmanager import Candidate, Creditors, HeartbeatAck, Members, MoveKvcache
from tests.control.parts import make_member


class LastOne:
    """Recommends the last instance by name, and would have all requests of the first moved there."""

    plans = True
    swaps = False
    shares_memory = True

    def recommend(self, query: tg.BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        return sorted(instances.all(), key=lambda view: view.instance_id)[-1:]

    def plan(self, balance: Balance, recent: RecentMoves) -> Sequence[Move]:
        if balance.get("a") is None or not recent.may_leave("r"):
            return ()
        return [Move(request_id="r", debtor_id="a", creditor_id="c", num_blocks=3, gain_tokens_per_s=2.5)]


def test_a_policy_has_a_name() -> None:
    assert isinstance(make_policy(AdviceSettings(policy="contract")), ContractPolicy)
    assert isinstance(make_policy(AdviceSettings(policy="greedy")), GreedyPolicy)
    assert isinstance(make_policy(AdviceSettings(policy="even")), EvenPolicy)
    assert isinstance(make_policy(AdviceSettings(policy="none")), NoPolicy)
    with pytest.raises(ConfigError, match="policy: expected one of contract, greedy, even, none, got 'contrat'"):
        make_policy(AdviceSettings(policy="contrat"))  # type: ignore[arg-type]
    assert set(POLICIES) == set(get_args(PolicyName))


def test_the_gmanager_does_what_its_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "contract", lambda _: LastOne())
    gm = GManager(MembershipSettings(heartbeat_s=0.5), AdviceSettings(policy="contract"), incarnation=9)
    for name in ("a", "c", "b"):
        gm.handle(GManagerRequested(name, name.encode(), tg.Join(member=make_member(name), compat="model")), 0.0)
    gm.handle(Tick(), 0.05)
    (answer,) = gm.handle(
        GManagerRequested("a", b"a", tg.BorrowQuery(instance_id="a", borrow_id="q", num_blocks=2)), 0.2
    )
    assert answer == Answer(b"a", Creditors(borrow_id="q", candidates=(Candidate("c", 8),)))
    assert gm.handle(Tick(), 0.5) == [], "nothing is known of what runs there"
    beat = tg.Heartbeat(instance_id="a", incarnation=1, seq=4, base=0, full=True, total_blocks=8)
    gm.handle(GManagerRequested("a", b"a", beat), 0.6)
    assert len(gm.handle(GManagerRequested("a", b"a", msgspec.structs.replace(beat, seq=5)), 1.1)) == 1, "not yet"
    planned = MovePlanned(request_id="r", debtor="a", destination="c", blocks=3, gain_tokens_per_s=2.5)
    move = MoveKvcache(
        request_id="r",
        num_blocks=3,
        destination="c",
        epoch=PlanEpoch(9, 1),
        debtor_incarnation=1,
        seq=5,
        gain_tokens_per_s=2.5,
    )
    assert gm.handle(Tick(), 1.2) == [Publish(planned), Answer(b"a", move)], "with what is in the inbox taken in"
    assert [gm.handle(Tick(), now) for now in (1.3, 1.7, 2.2)] == [[], [], []], "it was moved just now"
    assert gm.next_deadline() <= 2.7
    gm.validate()


def test_where_nobody_shares_memory_nobody_is_recommended_or_listed_as_lending() -> None:
    gm = GManager(MembershipSettings(heartbeat_s=0.5), AdviceSettings(policy="none"))
    for name in ("a", "b"):
        gm.handle(GManagerRequested(name, name.encode(), tg.Join(member=make_member(name), compat="model")), 0.0)
    listed = [c.body for c in gm.handle(Tick(), 0.05) if isinstance(c, Broadcast)]
    assert all(isinstance(body, Members) and body.policy == "none" for body in listed)
    assert [member.lendable_blocks for member in gm.members()] == [0, 0]
    query = tg.BorrowQuery(instance_id="a", borrow_id="q", num_blocks=2)
    assert gm.handle(GManagerRequested("a", b"a", query), 0.1) == [Answer(b"a", Creditors(borrow_id="q"))]
    beat = tg.Heartbeat(instance_id="a", incarnation=1, seq=1, base=0, full=True)
    (ack,) = gm.handle(GManagerRequested("a", b"a", beat), 0.2)
    assert isinstance(ack, Answer) and isinstance(ack.body, HeartbeatAck) and ack.body.policy == "none"
