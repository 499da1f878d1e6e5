"""CreditorLimits: a creditor near its limit is asked late, one at its limit not at all, and both for a while only."""

from __future__ import annotations

import math
from random import Random

from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.candidates import Candidates
from distkv.control.serving.creditor_limits import FRESH_S, LONGEST_S, CreditorLimits
from distkv.wire.messages.common import Epoch
from distkv.wire.messages.to_rmanager import Candidate, Granted, Refused
from tests.control.parts import add_sequence, make_state


def granted(fraction: float, limit: float = 0.5) -> Granted:
    return Granted(
        span_id="s", epoch=Epoch(1, 1), slots=(1,), ttl_s=4.0, serve_fraction=fraction, max_serve_fraction=limit
    )


def refused(retry_after_s: float) -> Refused:
    return Refused(span_id="s", reason="it serves enough", free_blocks=0, retry_after_s=retry_after_s)


def order(limits: CreditorLimits) -> list[str]:
    state = make_state(peers=("p", "q", "r"))
    borrow = Borrow("b", add_sequence(state), Purpose.PLACE, 2, frozenset())
    candidates = Candidates("me", state.members, state.paths, limits, Random(0))
    return [one.instance_id for one in candidates.in_order(borrow, [Candidate(name, 8) for name in "pqr"])]


def test_one_near_its_limit_comes_last_and_one_at_it_not_at_all() -> None:
    limits = CreditorLimits()
    limits.granted("p", granted(0.45), 10.0)
    assert order(limits) == ["q", "r", "p"]
    limits.refused("q", refused(1.5), 10.0)
    assert order(limits) == ["r", "p"]
    assert limits.next_deadline() == 11.5
    limits.tick(11.5)
    assert order(limits) == ["q", "r", "p"]
    limits.tick(10.0 + FRESH_S)
    assert order(limits) == ["p", "q", "r"] and limits.next_deadline() == math.inf
    limits.validate()


def test_what_it_says_last_counts() -> None:
    limits = CreditorLimits()
    limits.granted("p", granted(0.45), 10.0)
    limits.granted("p", granted(0.1), 11.0)
    assert not limits.is_near("p")
    limits.granted("p", granted(0.9, limit=1.0), 11.0)
    assert not limits.is_near("p"), "it has no limit"
    limits.refused("p", refused(0.0), 11.0)
    assert not limits.is_full("p"), "it has no memory"


def test_no_creditor_hides_for_ever() -> None:
    limits = CreditorLimits()
    limits.refused("p", refused(1e9), 10.0)
    assert limits.is_full("p")
    limits.tick(10.0 + LONGEST_S)
    assert not limits.is_full("p")
    limits.validate()
