"""Those who could go on at the same time take turns."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from distkv.client.turns import MOST_WOKEN, TURN_S, Turns


class Loop:
    """Turns of the event loop that each take as long as is said, and who was woken in which."""

    def __init__(self, least: int = 1) -> None:
        self.now_s = 0.0
        self.turn = 0
        self.woken: list[tuple[str, int]] = []
        self.turns = Turns(lambda: self.now_s, least)

    def take(self, name: str, *, urgent: bool = False) -> None:
        self.turns.take(lambda: self.woken.append((name, self.turn)), urgent=urgent)

    async def pass_(self, count: int, each_s: float = 0.0) -> None:
        for _ in range(count):
            self.turn += 1
            self.now_s += each_s
            await asyncio.sleep(0)

    def in_each(self) -> list[int]:
        counts = Counter(turn for _, turn in self.woken)
        return [counts[turn] for turn in sorted(counts)]


async def test_a_few_are_woken_in_each_turn_in_their_order_and_the_first_at_once() -> None:
    loop = Loop()
    names = [f"r{index}" for index in range(3 * MOST_WOKEN)]
    for name in names:
        loop.take(name)
    assert loop.in_each() == [MOST_WOKEN]
    await loop.pass_(5)
    assert [name for name, _ in loop.woken] == names and loop.in_each() == [MOST_WOKEN] * 3
    loop.take("later")
    assert loop.woken[-1] == ("later", loop.turn), "a turn with room is not waited for"


async def test_what_is_urgent_goes_before_all_that_wait() -> None:
    loop = Loop()
    for index in range(2 * MOST_WOKEN):
        loop.take(f"r{index}")
    loop.take("live", urgent=True)
    await loop.pass_(5)
    assert [name for name, _ in loop.woken][MOST_WOKEN] == "live"


@pytest.mark.parametrize("least", [1, 4])
async def test_the_longer_turns_take_the_fewer_are_woken_in_one_and_the_other_way_round(least: int) -> None:
    loop = Loop(least)
    for index in range(100 * MOST_WOKEN):
        loop.take(f"r{index}")
    await loop.pass_(10, 2 * TURN_S)
    assert loop.in_each()[-4:] == [least] * 4
    await loop.pass_(10, 0.75 * TURN_S)
    assert loop.in_each()[-4:] == [least] * 4
    await loop.pass_(2 * MOST_WOKEN)
    assert loop.in_each()[-4:] == [MOST_WOKEN] * 4


async def test_one_that_has_nothing_to_do_any_more_takes_no_room() -> None:
    loop = Loop()
    loop.take("first")
    for _ in range(10 * MOST_WOKEN):
        loop.turns.take(lambda: False)
    for index in range(MOST_WOKEN):
        loop.take(f"r{index}")
    assert loop.in_each() == [MOST_WOKEN]
    await loop.pass_(2)
    assert loop.in_each() == [MOST_WOKEN, 1]
