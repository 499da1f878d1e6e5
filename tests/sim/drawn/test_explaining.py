"""What an instance and its gManager say of a request is what happened to it."""

from __future__ import annotations

from distkv.client.views.explaining import Explanation
from distkv.control import commands as c
from distkv.control.query_limit import BURST
from distkv.sim.drawn.cluster import SimCluster
from distkv.wire.messages.to_client import ClusterState, Dispatched, Explained
from distkv.wire.messages.to_gmanager import ClusterQuery, ExplainQuery, Locate
from tests.sim.parts import check, prompt

TIMES = {"reclaim_after_s": 0.1, "reclaim_deadline_s": 0.3, "lease_s": 0.8, "lease_margin_s": 0.1}


def explained(cluster: SimCluster, name: str, request_id: str) -> Explained:
    return cluster.nodes[name].rm.explain(ExplainQuery(request_id=request_id), cluster.clock.now())


def asked(cluster: SimCluster, message: ExplainQuery | ClusterQuery | Locate) -> object:
    """The gManager's answer."""
    assert cluster.gm is not None
    (answer,) = [
        command.body
        for command in cluster.gm.handle(c.GManagerRequested("me", b"client:x", message), cluster.clock.now())
        if isinstance(command, c.Answer) and command.route == b"client:x"
    ]
    return answer


def test_who_asks_an_instance_in_a_loop_is_told_when_to_ask_again() -> None:
    cluster, query = SimCluster([16]), c.ClientRequested(b"client:x", ExplainQuery(request_id="r"))
    answers = [
        command.body
        for _ in range(BURST + 1)
        for command in cluster.nodes["i0"].rm.handle(query, cluster.clock.now())
        if isinstance(command, c.Answer) and isinstance(command.body, Explained)
    ]
    assert [answer.retry_after_s > 0 for answer in answers] == [False] * BURST + [True]
    assert answers[-1].query == "r" and answers[-1].state == "unknown"


def test_a_pooled_request_says_what_it_borrowed_and_what_came_home() -> None:
    cluster = SimCluster([], 1)
    cluster.start("i0", 140, lending_cap_blocks=0, **TIMES)
    cluster.start("i1", 100, **TIMES)
    cluster.run(1.0)
    cluster.submit("i0", "before", prompt(352), 150)
    cluster.run(0.05)
    asked(cluster, Locate(request_id="guest-1", num_tokens=490))
    cluster.submit("i0", "guest-1", prompt(300), 230)
    assert cluster.run(30, lambda: len(cluster.outcomes["guest-1"].tokens) >= 2)
    cluster.cancel("before")
    cluster.run(0.35)
    running = explained(cluster, "i0", "guest")
    assert (running.request_id, running.state, running.prompt_tokens) == ("guest-1", "running", 300)
    (debt,) = running.debts
    assert debt.instance_id == "i1" and debt.num_blocks > 0 and running.local_blocks > 0
    happened = [one.happened for one in running.history]
    assert happened[:2] == ["borrowed", "begins"] and "left" in happened
    assert running.history[0].why == "place" and running.history[0].instance_id == "i1"
    state = asked(cluster, ClusterQuery())
    assert isinstance(state, ClusterState) and state.policy == "contract" and state.num_ready == 2
    ((debtor, creditor, blocks),) = [(one.debtor_id, one.creditor_id, one.num_blocks) for one in state.debts]
    assert (debtor, creditor) == ("i0", "i1") and blocks >= debt.num_blocks and state.lent_blocks == blocks
    sent = asked(cluster, ExplainQuery(request_id="guest"))
    assert isinstance(sent, Dispatched) and sent.request_id == "guest-1" and sent.serving_id == "i0"
    lines = Explanation(running, sent).sentences()
    assert any("it borrowed" in line and "from i1 so that all of it has a place" in line for line in lines), lines
    assert any("of it is remote" in line for line in lines)

    cluster.submit("i1", "own", prompt(340, 7), 8)
    cluster.finish()
    check(cluster, "guest-1", prompt(300), 230)
    ended = explained(cluster, "i0", "guest-1")
    assert ended.state == "ended" and not ended.debts
    happened = [one.happened for one in ended.history]
    assert "reclaimed" in happened and "came_home" in happened and happened[-1] == "ended"
    assert explained(cluster, "i1", "guest-1").state == "unknown"
    assert not any("it borrowed" in line and "{" in line for line in Explanation(ended).sentences())
    cluster.settle()


def test_one_that_waits_says_what_it_lacks_and_who_came_before() -> None:
    cluster = SimCluster([30], 2)
    for name in ("first", "second", "third"):
        cluster.submit("i0", name, prompt(60), 40)
    cluster.run(0.1)
    third = explained(cluster, "i0", "third")
    assert third.state == "waiting" and third.lacks_blocks == 15 and third.num_before == 1
    assert third.room_blocks < third.lacks_blocks + third.growth_blocks and third.num_creditors == 0
    assert "it lacks 15 rBlocks" in Explanation(third).sentences()[-1]
    assert "holds no memory" in Explanation(third).sentences()[2]
    cluster.finish()


def test_a_preempted_request_says_so() -> None:
    cluster = SimCluster([12], 3)
    for name in ("first", "second"):
        cluster.submit("i0", name, prompt(16), 24)
    cluster.finish()
    told = [one for name in ("first", "second") for one in explained(cluster, "i0", name).history]
    preemptions = [one for one in told if one.happened == "preempted"]
    assert len(preemptions) == cluster.nodes["i0"].rm.state.counters.preemptions
    assert all(one.why == "a running request needed a slot" for one in preemptions)
