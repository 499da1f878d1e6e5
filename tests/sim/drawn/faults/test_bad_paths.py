"""Creditors that grant and cannot be used: no path to them, no path from them, or nobody at its end.

The control plane says nothing of the data plane. Who goes on asking a creditor that grants and cannot be reached gets
in 60 s 0 of 20 tokens, 1,741 grants, 14,380 tokens computed again, while another has room.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from distkv import events
from distkv.control import commands as c
from distkv.sim.drawn.cluster import SimCluster
from distkv.types import SamplingParams
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from tests.sim.parts import check, prompt
from tests.token_ids import prompt_fields

PROMPT, MAX_TOKENS = prompt(120), 20


def cut_queries(cluster: SimCluster, debtor: str, creditor: str) -> None:
    """The debtor's worker cannot reach the creditor's; the other way works."""
    cluster.cut_path(debtor, creditor)


def cut_pulls(cluster: SimCluster, debtor: str, creditor: str) -> None:
    cluster.cut_path(creditor, debtor)


def never_pull(cluster: SimCluster, debtor: str, creditor: str) -> None:
    """A creditor that grants, and takes nothing; who watches over progress takes it for a good one."""
    cluster.progress.validate = lambda now: None  # type: ignore[method-assign]
    worker = cluster.nodes[creditor].worker
    handle = worker.handle
    worker.handle = lambda message: [] if isinstance(message, tw.Pull) else handle(message)  # type: ignore[method-assign]


def never_attend(cluster: SimCluster, debtor: str, creditor: str) -> None:
    """It takes links and blocks, and answers no queries; who watches over progress takes it for a good one."""
    cluster.progress.validate = lambda now: None  # type: ignore[method-assign]
    worker = cluster.nodes[debtor].worker
    handle = worker.handle

    def lose(message: Any) -> Any:
        if isinstance(message, tw.Step) and any(s.instance_id == creditor for q in message.seqs for s in q.remote):
            lost = [any(span.instance_id == creditor for span in seq.remote) for seq in message.seqs]
            seqs = tuple(seq for seq, is_lost in zip(message.seqs, lost, strict=True) if not is_lost)
            kept = tw.Step(step_id=message.step_id, seqs=seqs)
            (result,) = handle(kept)
            assert isinstance(result, fw.StepResult)
            done = {one.request_id: one for one in result.results}
            results = []
            for seq in message.seqs:
                if seq.request_id in done:
                    results.append(done[seq.request_id])
                    continue
                is_void = worker.lost_attempt.get(seq.request_id, -1) >= seq.attempt
                worker.lost_attempt[seq.request_id] = seq.attempt
                results.append(
                    fw.SeqResult(
                        request_id=seq.request_id,
                        attempt=seq.attempt,
                        status="void" if is_void else "lost",
                        lost=() if is_void else (creditor,),
                    )
                )
            return [fw.StepResult(step_id=message.step_id, results=tuple(results))]
        return handle(message)

    worker.handle = lose  # type: ignore[method-assign]


FAULTS = [cut_queries, cut_pulls, never_pull, never_attend]


def start(
    pools: list[int], fault: Callable[[SimCluster, str, str], None], timeout_s: float | None = None
) -> SimCluster:
    """i0 serves a request that does not fit it; i1 is the first to be recommended, and does not work."""
    cluster = SimCluster(pools, 3, request_timeout_s=60.0)
    fault(cluster, "i0", "i1")
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    submit = tr.Submit(request_id="r", params=params, timeout_s=timeout_s, **prompt_fields(tuple(PROMPT)))
    cluster.owner["r"] = "i0"
    cluster.handle("i0", c.Tokenized(submit, array("i", PROMPT), b"client:r"))
    return cluster


def grants_of(cluster: SimCluster, creditor: str) -> int:
    return sum(isinstance(event, events.Lent) for name, event in cluster.events if name == creditor)


def recomputed(cluster: SimCluster) -> int:
    return cluster.nodes["i0"].rm.state.counters.recomputed_tokens


@pytest.mark.parametrize("fault", FAULTS)
def test_another_creditor_that_has_room_is_found(fault: Callable[[SimCluster, str, str], None]) -> None:
    cluster = start([16, 48, 40], fault)
    began = cluster.clock.now()
    cluster.finish(60)
    check(cluster, "r", PROMPT, MAX_TOKENS)
    assert cluster.clock.now() - began < (25.0 if fault is never_pull else 8.0)
    assert grants_of(cluster, "i1") <= 3
    assert recomputed(cluster) <= (len(PROMPT) if fault is never_attend else 0)
    cluster.settle(30)


@pytest.mark.parametrize("timeout_s", [60.0, None])
@pytest.mark.parametrize("fault", FAULTS)
def test_without_another_it_is_tried_ever_more_rarely_and_the_request_ends_with_the_reason(
    fault: Callable[[SimCluster, str, str], None], timeout_s: float | None
) -> None:
    """Also one that has no deadline of its own."""
    cluster = start([16, 48], fault, timeout_s)
    cluster.finish(100)
    ended = cluster.outcomes["r"].ended
    assert ended is not None and ended.kind == "failed"
    reader, source = ("i1", "i0") if fault in (cut_pulls, never_pull) else ("i0", "i1")
    assert f"{reader} could not read from {source}: " in ended.reason
    assert grants_of(cluster, "i1") <= 16, "and not 1,741"
    assert recomputed(cluster) <= {never_attend: 10, never_pull: 4}.get(fault, 0) * len(PROMPT), "and not 14,380"
    cluster.settle(30)


@pytest.mark.parametrize("fault", [cut_queries, cut_pulls])
@pytest.mark.parametrize("cut_s", [3.0, 20.0, 55.0])
def test_a_creditor_that_works_again_is_used_again(cut_s: float, fault: Callable[[SimCluster, str, str], None]) -> None:
    """However long it did not: nobody else has the memory, and links and pulls that fail cost no token."""
    cluster = start([16, 48], fault)
    cluster.run(cut_s)
    assert not cluster.outcomes["r"].tokens
    for reader, source in (("i0", "i1"), ("i1", "i0")):
        cluster.cut_path(reader, source, False)
    cluster.finish(10)
    check(cluster, "r", PROMPT, MAX_TOKENS)
    assert recomputed(cluster) == 0
    cluster.settle(12)


@pytest.mark.parametrize("fault", [cut_queries, cut_pulls])
def test_a_creditor_that_works_again_after_minutes_serves_who_comes(
    fault: Callable[[SimCluster, str, str], None],
) -> None:
    """Some seconds later: what came for 92 s after a cut of 100 s was failed before it could try."""
    cluster = start([16, 48], fault)
    cluster.run(100.0)
    assert cluster.outcomes["r"].ended is not None
    for reader, source in (("i0", "i1"), ("i1", "i0")):
        cluster.cut_path(reader, source, False)
    cluster.run(10.0)
    cluster.submit("i0", "again", PROMPT, MAX_TOKENS)
    cluster.finish(10)
    check(cluster, "again", PROMPT, MAX_TOKENS)
    cluster.settle(12)


def test_a_path_that_breaks_under_a_request_costs_what_lay_there_once() -> None:
    cluster = start([16, 48, 40], lambda *_: None)
    assert cluster.run(20, lambda: len(cluster.outcomes["r"].tokens) >= 4)
    victim = max(set(cluster.spans("r")) - {"i0"}, key=cluster.spans("r").__getitem__)
    lay_there = cluster.spans("r")[victim]
    cluster.cut_path("i0", victim)
    cluster.finish(30)
    check(cluster, "r", PROMPT, MAX_TOKENS)
    assert recomputed(cluster) <= lay_there + 8
    cluster.settle(12)
