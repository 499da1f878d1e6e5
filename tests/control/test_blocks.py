"""BlockPool against a plain list of states, in any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distkv.control.blocks import BlockPool, SlotState
from tests.control.parts import calls
from tests.examples import examples

SIZE = 24
TAKEN = [SlotState.LOCAL, SlotState.RESERVED, SlotState.LENT]


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(SIZE)
        self.model = [SlotState.FREE] * SIZE

    @rule(count=st.integers(0, SIZE), state=st.sampled_from(TAKEN))
    def allocate(self, count: int, state: SlotState) -> None:
        free = self.free_runs()
        slots = self.pool.allocate(count, state)
        if count > self.model.count(SlotState.FREE):
            assert slots is None
            return
        assert slots is not None and slots == sorted(set(slots)) and len(slots) == count
        assert all(self.model[slot] is SlotState.FREE for slot in slots)
        assert runs_of(slots) == fewest_runs(free, count)
        for slot in slots:
            self.model[slot] = state

    @rule(data=st.data(), state=st.sampled_from(TAKEN))
    def free(self, data: st.DataObject, state: SlotState) -> None:
        slots = self.some(data, state)
        self.pool.free(iter(slots), state)
        for slot in slots:
            self.model[slot] = SlotState.FREE

    @rule(data=st.data(), old=st.sampled_from(TAKEN), new=st.sampled_from(TAKEN))
    def change(self, data: st.DataObject, old: SlotState, new: SlotState) -> None:
        slots = self.some(data, old)
        self.pool.change(slots, old, new)
        for slot in slots:
            self.model[slot] = new

    def some(self, data: st.DataObject, state: SlotState) -> list[int]:
        slots = [slot for slot in range(SIZE) if self.model[slot] is state]
        return data.draw(st.permutations(slots))[: data.draw(st.integers(0, len(slots)))]

    def free_runs(self) -> list[int]:
        lengths = [0]
        for state in self.model:
            if state is SlotState.FREE:
                lengths[-1] += 1
            elif lengths[-1]:
                lengths.append(0)
        return lengths

    @invariant()
    def agrees(self) -> None:
        self.pool.validate()
        for state in SlotState:
            assert self.pool.count(state) == self.model.count(state)
        assert self.pool.num_free == self.model.count(SlotState.FREE)


def runs_of(slots: list[int]) -> int:
    return sum(1 for i, slot in enumerate(slots) if i == 0 or slots[i - 1] != slot - 1)


def fewest_runs(lengths: list[int], count: int) -> int:
    used = 0
    for length in sorted(lengths, reverse=True):
        if count <= 0:
            break
        used, count = used + 1, count - length
    return used


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_the_smallest_run_that_fits_is_used() -> None:
    pool = BlockPool(16)
    pool.allocate(16, SlotState.LOCAL)
    pool.free(range(0, 6), SlotState.LOCAL)
    pool.free(range(8, 11), SlotState.LOCAL)
    assert pool.allocate(3, SlotState.LOCAL) == [8, 9, 10]
    assert pool.allocate(4, SlotState.LOCAL) == [0, 1, 2, 3]


def test_neighbours_that_come_free_are_one_run_again() -> None:
    pool = BlockPool(9)
    pool.allocate(9, SlotState.LENT)
    for slot in (3, 5, 4):
        pool.free([slot], SlotState.LENT)
        pool.validate()
    assert pool.allocate(3, SlotState.LOCAL) == [3, 4, 5]


def test_a_slot_in_another_state_is_never_given_back() -> None:
    pool = BlockPool(4)
    pool.allocate(2, SlotState.LOCAL)
    with pytest.raises(AssertionError):
        pool.free([0], SlotState.LENT)
    with pytest.raises(AssertionError):
        pool.free([3], SlotState.LOCAL)


def test_a_pool_holds_something() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        BlockPool(0)


# --- several owners, and what a slot holds


def test_a_slot_of_two_owners_is_free_when_the_last_lets_go() -> None:
    pool = BlockPool(4)
    slots = pool.allocate(3, SlotState.LOCAL)
    assert slots == [0, 1, 2] and pool.num_owners(1) == 1 and pool.num_owners(3) == 0
    pool.share([1, 2], SlotState.LOCAL)
    pool.share([2], SlotState.LOCAL)
    assert [pool.num_owners(slot) for slot in range(4)] == [1, 2, 3, 0]
    pool.free([0, 1, 2], SlotState.LOCAL)
    pool.validate()
    assert [pool.num_owners(slot) for slot in range(4)] == [0, 1, 2, 0] and pool.num_free == 2
    pool.free([1, 2], SlotState.LOCAL)
    assert pool.allocate(3, SlotState.LOCAL) == [0, 1, 3], "the one still owned is not handed out"
    pool.free([2], SlotState.LOCAL)
    pool.validate()
    assert pool.num_free == 1
    with pytest.raises(AssertionError, match="slot 2 is"):
        pool.free([2], SlotState.LOCAL)
    with pytest.raises(AssertionError, match="slot 2 is"):
        pool.share([2], SlotState.LOCAL)


def test_content_is_found_by_its_key_until_its_slot_is_free() -> None:
    pool = BlockPool(4)
    pool.allocate(2, SlotState.LOCAL)
    pool.set_content(0, b"a prefix")
    pool.set_content(1, b"a prefix")
    assert pool.find_content(b"a prefix") == 0 and pool.find_content(b"another") is None
    pool.share([0], SlotState.LOCAL)
    pool.free([0], SlotState.LOCAL)
    assert pool.find_content(b"a prefix") == 0, "its other owner still holds it"
    pool.free([0], SlotState.LOCAL)
    assert pool.find_content(b"a prefix") is None, "whoever gets the slot next writes into it"
    pool.validate()
    pool.set_content(1, b"a prefix")
    assert pool.find_content(b"a prefix") == 1
    with pytest.raises(AssertionError, match="holds nothing"):
        pool.set_content(0, b"a prefix")


@pytest.mark.parametrize("what", ["owners", "key", "slot"])
def test_free_slots_have_neither_owners_nor_keys(what: str) -> None:
    pool = BlockPool(4)
    if what == "owners":
        pool._more_owners[2] = 1
    else:
        pool._key_of[2] = b"k"
        if what == "slot":
            pool._slot_of[b"k"] = 2
    with pytest.raises(AssertionError, match=r"has owners|disagree|has a key"):
        pool.validate()


def test_taking_and_freeing_slots_costs_the_same_in_a_large_pool_in_fragments() -> None:
    """Every second slot is free: as many runs as there can be. Calls are counted, not time."""
    counted = []
    for size in (10, 1_000, 10_000):
        pool = BlockPool(2 * size)
        slots = pool.allocate(2 * size, SlotState.LOCAL) or []
        pool.free(slots[::2], SlotState.LOCAL)

        def take_and_free(pool: BlockPool = pool) -> None:
            pool.free(pool.allocate(3, SlotState.LOCAL) or [], SlotState.LOCAL)

        counted.append(calls(take_and_free))
        pool.validate()
    assert counted[0] == counted[1] == counted[2], counted


def test_several_taken_singly_are_those_that_one_after_the_other_gives() -> None:
    together, one_by_one = BlockPool(12), BlockPool(12)
    for pool in (together, one_by_one):
        taken = pool.allocate(12, SlotState.LOCAL) or []
        pool.free([taken[1], taken[4], taken[5], taken[9]], SlotState.LOCAL)
    expected = [slot for _ in range(4) for slot in one_by_one.allocate(1, SlotState.LOCAL) or []]
    assert together.allocate_singly(4, SlotState.LOCAL) == expected
    together.validate()
    assert together.num_free == 0
