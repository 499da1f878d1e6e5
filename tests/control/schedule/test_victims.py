"""Who is preempted: the one that costs least to do again, never the oldest while another frees a slot."""

from __future__ import annotations

from distkv.control.schedule.victims import Victim, cheapest


def victim(name: str, arrival: float, redo_tokens: int, frees: bool = True) -> Victim:
    return Victim(name, (arrival, name), redo_tokens, frees)


def test_the_cheapest_but_the_oldest() -> None:
    old, dear, cheap = victim("old", 0.0, 1), victim("dear", 1.0, 90), victim("cheap", 2.0, 10)
    assert cheapest([dear, cheap, old]) == cheap
    assert cheapest([dear, old]) == dear
    assert cheapest([old]) == old and cheapest([]) is None


def test_of_equals_the_youngest() -> None:
    same = [victim(f"r{number}", number, 10) for number in range(4)]
    assert cheapest(same) == same[-1]


def test_only_who_frees_a_slot() -> None:
    assert cheapest([victim("old", 0.0, 1), victim("remote", 1.0, 1, frees=False)]) == victim("old", 0.0, 1)
    assert cheapest([victim("remote", 1.0, 1, frees=False)]) is None
