"""How many instances are needed: the smallest that were enough, and what the next smaller ones lack."""

from __future__ import annotations

from distkv.bench.simulation.figures import Figures
from distkv.bench.simulation.needed import Needed, Size, Wanted, needed

SMALL, WIDE, LARGE = Size(4, 1000), Size(4, 2000), Size(8, 1000)


def found(ttft_s: float | None, completed: int = 10, policy: str = "contract", tpot_s: float | None = 0.1) -> Figures:
    return Figures(policy, 1.0, completed, 0, 5.0, 1.0, ttft_s, ttft_s, tpot_s, 0.0, 0.0)


def test_the_smallest_that_is_enough() -> None:
    played = [(LARGE, found(0.5)), (SMALL, found(3.0)), (WIDE, found(1.0))]
    (answer,) = needed(played, Wanted(ttft_p99_s=2.0), 10)
    missed = ("time to first token p99 3 s, not 2 s",)
    assert answer == Needed("contract", 1.0, 4, 2000, "4 instances of 1,000 tokens", missed)
    assert str(answer) == (
        "contract, rate x 1: 4 instances of 2,000 tokens; 4 instances of 1,000 tokens: time to first token p99 3 s, "
        "not 2 s"
    )


def test_none_is_and_the_smallest_already_is() -> None:
    played = [(SMALL, found(3.0, policy="none")), (LARGE, found(2.5, 9, "none")), (SMALL, found(1.0))]
    none, contract = needed(played, Wanted(ttft_p99_s=2.0), 10)
    assert (none.instances, none.kv_tokens, none.smaller) == (None, None, "8 instances of 1,000 tokens")
    assert "none of these sizes is enough; 8 instances" in str(none) and "9 of 10 requests completed" in str(none)
    assert str(contract) == "contract, rate x 1: 4 instances of 1,000 tokens, the smallest that was played"


def test_all_requests_are_to_complete_unless_fewer_are_enough() -> None:
    assert Wanted(ttft_p99_s=2.0).missed(found(1.0, 9), 10) == ("9 of 10 requests completed",)
    assert not Wanted(ttft_p99_s=2.0, completed=0.9).missed(found(1.0, 9), 10)
    assert not Wanted(tpot_p99_s=0.1, completed=0.0).missed(found(None, 0, tpot_s=None), 10)
    assert Wanted(tpot_p99_s=0.05).missed(found(1.0), 10) == ("time per token p99 0.1 s, not 0.05 s",)
    assert str(Size(1, 500)) == "1 instance of 500 tokens"
