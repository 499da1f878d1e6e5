"""While debts that go round are cancelled, those that decode lose next to nothing; afterwards they are faster."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

from distkv import events
from distkv.config import AdviceSettings
from distkv.control import commands as c
from distkv.sim.timed.cluster import READY_S, TimedCluster
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_rmanager import MoveKvcache
from tests.sim.timed.parts import spec, trace

OWED = 30
MOVED_S = 3.0
MOST_COST = 0.02


def ring(dgfm_min_blocks: int) -> TimedCluster:
    """Two instances decode one request each, of which OWED rBlocks lie at the other one from MOVED_S on, to the end."""
    advice = AdviceSettings(dgfm_min_blocks=dgfm_min_blocks)
    cluster = TimedCluster(spec(advice=advice, keep_events=True))
    cluster.agenda.at(READY_S + MOVED_S, lambda: move_to_each_other(cluster))
    cluster.play(trace((0.0, 500, 700), (1.2, 500, 700)))
    return cluster


def move_to_each_other(cluster: TimedCluster) -> None:
    assert cluster.gmanager.machine is not None
    for (name, node), other in zip(cluster.processes.nodes.items(), ("i1", "i0"), strict=True):
        beat = cluster.gmanager.machine.ledger.entries[name].heartbeat
        (seq,) = node.rm.state.running()
        assert beat is not None
        plan = MoveKvcache(
            request_id=seq.request_id,
            num_blocks=OWED,
            destination=other,
            epoch=PlanEpoch(1, 1),
            debtor_incarnation=1,
            seq=beat.seq,
        )
        cluster.processes.handle(name, c.FromGManager(plan))


def happened(cluster: TimedCluster, kind: type[Any]) -> list[float]:
    return [at_s for at_s, _, event in cluster.events if isinstance(event, kind)]


def gaps_s(cluster: TimedCluster, begin_s: float, end_s: float) -> list[float]:
    """Between tokens of each request that came after `begin_s`, until the first after `end_s`."""
    found = list[float]()
    for outcome in cluster.clients.outcomes:
        times_s = [outcome.request.arrival_s + time_s for time_s in outcome.times_s]
        found += [late - early for early, late in pairwise(times_s) if early < end_s and late > begin_s]
    return found


def test_a_run_costs_those_that_decode_two_percent_at_most() -> None:
    swapping, leaving = ring(4), ring(0)
    (begun_s,), (ended_s,) = (happened(swapping, kind) for kind in (events.DgfmBegun, events.DgfmEnded))
    assert swapping.count().swapped_blocks >= 2 * 8 and not happened(leaving, events.DgfmBegun)
    during, usual = (gaps_s(cluster, begun_s, ended_s) for cluster in (swapping, leaving))
    assert len(during) >= 6 and fmean(during) <= (1 + MOST_COST) * fmean(usual), (during, usual)
    assert max(during) <= (1 + MOST_COST) * max(usual), "nobody stands still for it"
    after, waiting = (gaps_s(cluster, ended_s + 0.1, ended_s + 2.0) for cluster in (swapping, leaving))
    assert fmean(after) < 0.96 * fmean(waiting), "nothing waits for partials any more"
