"""Chunk sizes, on machines whose steps cost what a formula says (docs/design.md, "Chunks beside decodes")."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from distkv.control.schedule.chunking import HIGHEST_AIM, MEASURE_EVERY, Chunk, Chunking
from distkv.control.schedule.least_chunk import LEAST_TOKENS

MOST = 2048
IN_FLIGHT = 2


@dataclass
class Machine:
    """Seconds of a step. free: tokens that ride free on the weights. key: of a chunk's token, per key before it."""

    decode: float = 1e-3
    token: float = 50e-6
    key: float = 20e-9
    chunk: float = 100e-6
    free: int = 0
    noise: float = 0.0
    stall: float = 0.0
    speed: float = 1.0
    draw: Random = field(default_factory=lambda: Random(7))

    def step_s(self, decodes: int, chunks: list[Chunk]) -> float:
        cost = 2e-3 + self.decode * decodes
        rows = sum(end - start for start, end in chunks)
        cost += self.token * max(0, rows - self.free)
        for start, end in chunks:
            cost += self.chunk + self.key * start * (1 + (end - start))
        cost *= (self.draw.gauss(1.0, self.noise) if self.noise else 1.0) / self.speed
        return cost * (10 if self.draw.random() < self.stall else 1)


@dataclass
class Steps:
    """Steps of `chunking` on a machine, two in flight."""

    machine: Machine
    chunking: Chunking = field(default_factory=lambda: Chunking(MOST, 2.0))
    sent: deque[tuple[int, list[Chunk]]] = field(default_factory=deque)
    took: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def plan(self, decodes: int, waiting: list[Chunk]) -> list[Chunk]:
        allowance = self.chunking.allowance(decodes)
        chunks = []
        for start, end in waiting:
            if tokens := min(end - start, allowance.tokens(start)):
                chunks.append((start, start + tokens))
                allowance.spend(start, start + tokens)
        self.sent.append((decodes, chunks))
        self.sizes.append(sum(end - start for start, end in chunks))
        if len(self.sent) == IN_FLIGHT:
            self.answer()
        return chunks

    def answer(self) -> None:
        decodes, chunks = self.sent.popleft()
        self.took.append(self.machine.step_s(decodes, chunks))
        self.chunking.observe(decodes, chunks, self.took[-1])

    def prefill(self, decodes: int, tokens: int, first: int = 0) -> list[float]:
        """Seconds of the steps until a prompt is through."""
        done, begun = first, len(self.took)
        while done < tokens:
            done += sum(end - start for start, end in self.plan(decodes, [(done, tokens)]))
        while self.sent:
            self.answer()
        return self.took[begun:]

    def decode(self, decodes: int, steps: int = 20) -> float:
        """Median seconds of a step."""
        begun = len(self.took)
        for _ in range(steps):
            self.plan(decodes, [])
        return statistics.median(self.took[begun:])


def high(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.parametrize("decodes", [1, 8, 60])
@pytest.mark.parametrize(
    "costs",
    [
        {"key": 1e-9},
        {"key": 1e-9, "free": 64},
        {"key": 1e-9, "noise": 0.05},
        {"decode": 4e-3, "key": 10e-9, "noise": 0.1},
    ],
    ids=["plain", "rows that ride free", "noise", "attention"],
)
def test_a_long_prompt_doubles_a_step_of_decodes_at_most(costs: dict[str, Any], decodes: int) -> None:
    machine = Machine(**costs)
    steps = Steps(machine)
    alone = steps.decode(decodes)
    taken = steps.prefill(decodes, 32768)
    assert high(taken, 0.99) <= 2.0 * alone * (1 + 2 * machine.noise)
    again = steps.prefill(decodes, 32768)
    assert high(again, 0.99) <= 2.0 * alone * (1 + 2 * machine.noise)
    assert statistics.median(again) >= 1.4 * alone, "and uses what it may"


def test_without_decodes_a_chunk_fills_the_step() -> None:
    steps = Steps(Machine())
    steps.prefill(0, 10 * MOST)
    assert set(steps.sizes) == {MOST}


def test_prefill_goes_on_where_its_keys_alone_take_longer_than_the_decodes() -> None:
    steps = Steps(Machine(chunk=1.0))
    steps.decode(4)
    begun = len(steps.sizes)
    steps.prefill(4, 30000)
    steps.prefill(4, 30000)
    sizes = steps.sizes[begun:-1]
    assert min(size for size in sizes if size) >= LEAST_TOKENS - 1
    assert len(sizes) <= 400 and sizes[-30:].count(0) <= 2 + 30 // MEASURE_EVERY, "hardly a step goes without a chunk"


def times_as_long(machine: Machine, size: int) -> float:
    """A chunk of so many tokens, by one of LEAST_TOKENS; nothing rides free."""
    least_s = machine.chunk + machine.token * LEAST_TOKENS
    return (machine.chunk + machine.token * size) / least_s


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("pass_s", [0.01, 0.02, 0.05])
def test_where_no_chunk_keeps_the_ratio_it_makes_a_step_twice_as_much_longer_as_it_must_be(
    pass_s: float, noise: float
) -> None:
    steps = Steps(Machine(chunk=pass_s, key=0.0, noise=noise))
    alone = steps.decode(4)
    steps.prefill(4, 30000)
    begun = len(steps.sizes)
    taken = steps.prefill(4, 60000)
    usual = int(statistics.median(steps.sizes[begun:-1]))
    assert 1.2 <= times_as_long(steps.machine, usual) <= 2.2
    assert high(taken, 0.8) <= (alone + 2.2 * pass_s) * (1 + 2 * noise)
    in_eights_s = 60000 / LEAST_TOKENS * times_as_long(steps.machine, LEAST_TOKENS) * pass_s
    assert sum(taken) - len(taken) * alone < 0.2 * in_eights_s, "all wait a fifth as long"


@pytest.mark.parametrize("seed", range(4))
def test_a_pass_is_told_from_noise_stalls_and_changes_of_speed(seed: int) -> None:
    steps = Steps(Machine(chunk=0.02, key=0.0, noise=0.05, stall=0.02, draw=Random(seed)))
    steps.decode(8)
    draw = Random(seed)
    for start in range(0, 60000, 5000):
        steps.machine.speed = draw.choice([1.0, 0.6, 0.4])
        steps.prefill(8, start + 5000, first=start)
    assert 128 <= statistics.median(steps.sizes[-100:]) <= 512


@pytest.mark.parametrize("seed", range(4))
def test_where_tokens_cost_the_same_in_every_chunk_they_come_as_few_at_a_time_as_may_be(seed: int) -> None:
    """Larger chunks would only make steps longer."""
    steps = Steps(Machine(decode=0.3e-3, key=20e-9, noise=0.05, stall=0.01, draw=Random(seed)))
    steps.decode(8)
    for _ in range(2):
        steps.prefill(8, 32768)
    sizes = [size for size in steps.sizes[-2000:] if size]
    assert high(sizes, 0.97) == LEAST_TOKENS
    assert len(sizes) >= 2000 * 0.9


def test_the_least_chunk_breaks_no_ratio_that_can_be_kept() -> None:
    machine = Machine(chunk=0.02, key=0.0)
    steps = Steps(machine)
    steps.decode(4)
    steps.prefill(4, 60000)
    assert steps.sizes[-50] >= 128, "one that could not be"
    machine.decode = 8e-3
    alone = steps.decode(8)
    assert alone > 2 * machine.chunk
    steps.prefill(8, 30000)
    assert high(steps.prefill(8, 30000), 0.98) <= 2.0 * alone


def test_a_ratio_that_leaves_no_time_for_chunks_is_taken() -> None:
    steps = Steps(Machine(key=0.0), Chunking(MOST, 1.0))
    alone = steps.decode(8)
    taken = steps.prefill(8, 20000)
    assert high(taken, 0.95) <= alone + 2.5 * (steps.machine.chunk + LEAST_TOKENS * steps.machine.token)


def test_every_so_often_a_step_measures_the_decodes_again() -> None:
    machine = Machine(key=0.0)
    steps = Steps(machine)
    steps.decode(8)
    steps.prefill(8, 40000)
    machine.decode *= 3
    slower = steps.prefill(8, 400000)
    alone = machine.step_s(8, [])
    assert high(slower, 0.99) <= 2.0 * alone
    assert statistics.median(slower) >= 1.5 * alone, "it learned that the decodes take longer now"
    assert steps.sizes[-1000:].count(0) <= 2 + 1000 // MEASURE_EVERY


def test_a_machine_whose_speed_changes_is_followed() -> None:
    machine = Machine(decode=0.3e-3, key=20e-9)
    steps = Steps(machine)
    steps.decode(32)
    draw, done, ratios = Random(3), 0, []
    while done < 32768:
        if len(ratios) % 100 == 0:
            machine.speed = draw.choice([1.0, 0.6, 0.4])
        done += sum(end - start for start, end in steps.plan(32, [(done, 32768)]))
        ratios.append(steps.took[-1] / machine.step_s(32, []))
    assert high(ratios, 0.9) <= 2.0


def test_another_number_of_decodes_is_measured_soon() -> None:
    steps = Steps(Machine(key=0.0))
    steps.decode(60)
    steps.prefill(60, 20000)
    steps.prefill(1, 2000)
    few = steps.prefill(1, 20000)
    assert high(few, 0.98) <= 2.0 * steps.machine.step_s(1, [])


def test_the_first_step_beside_decodes_has_a_measure() -> None:
    steps = Steps(Machine())
    steps.prefill(0, 4000)
    assert [steps.plan(4, [(0, 1000)]) for _ in range(2)] == [[], []], "two are in flight until there is one"
    assert steps.plan(4, [(0, 1000)]) == [(0, LEAST_TOKENS)]


def test_decodes_whose_steps_nobody_timed_set_no_limit() -> None:
    chunking = Chunking(256, 2.0)
    chunking.observe(0, [(0, 64)], 0.01)
    found = []
    for _ in range(6):
        found.append(chunking.allowance(4).tokens(0))
        chunking.observe(4, [], 0.0)
    assert found == 2 * [0, 0, 252], "two steps without a chunk would measure"


@pytest.mark.parametrize("seed", range(8))
def test_stalls_hardly_move_the_estimates(seed: int) -> None:
    steps = Steps(Machine(key=0.0, stall=0.02, noise=0.02, draw=Random(seed)))
    steps.decode(16)
    steps.prefill(16, 10000)
    before = len(steps.sizes)
    steps.prefill(16, 200000)
    sizes = [size for size in steps.sizes[before:-2] if size]
    usual = statistics.median(sizes)
    assert high(sizes, 0.1) >= 0.25 * usual
    assert high(sizes, 0.99) <= 2.5 * usual


def test_a_longer_context_than_any_before_is_not_taken_for_a_short_one() -> None:
    steps = Steps(Machine(key=20e-9))
    steps.decode(16)
    steps.prefill(16, 2000)
    alone = steps.machine.step_s(16, [])
    resumed = steps.prefill(16, 31000, first=30000)
    assert max(resumed) <= 3 * alone


def test_chunks_of_several_prompts_share_the_time() -> None:
    steps = Steps(Machine(key=0.0))
    steps.decode(16)
    steps.prefill(16, 20000)
    alone = steps.machine.step_s(16, [])
    chunks = steps.plan(16, [(0, 100), (0, 100), (0, 1000), (500, 4000), (0, 1000)])
    assert 2 <= len(chunks) < 5
    steps.answer()
    assert steps.took[-1] <= 2 * alone


def test_a_steady_machine_has_longer_steps_than_one_whose_steps_vary() -> None:
    medians = []
    for noise in (0.0, 0.15):
        steps = Steps(Machine(noise=noise))
        alone = steps.decode(32)
        taken = steps.prefill(32, 65536)
        assert high(taken, 0.96) <= 2.0 * alone
        medians.append(statistics.median(taken[-400:]) / alone)
    assert medians[0] >= 1.75 > 1.6 >= medians[1]


def test_chunks_have_few_sizes() -> None:
    steps = Steps(Machine(key=20e-9, noise=0.05))
    steps.decode(32)
    steps.prefill(32, 32768)
    assert len(set(steps.sizes)) <= 24


@pytest.mark.parametrize("fits", [12, 14, 22, 30, 47, 63, 95, 200])
def test_what_a_size_is_short_of_the_time_is_little(fits: int) -> None:
    decodes = 16
    alone = Machine().step_s(decodes, [])
    steps = Steps(Machine(key=0.0, chunk=0.0, token=(2 * HIGHEST_AIM - 1) * alone / (fits + 0.01)))
    steps.decode(decodes)
    steps.prefill(decodes, 20000)
    usual = statistics.median(steps.sizes[-40:-2])
    assert 0.75 * fits <= usual <= fits


def test_a_worker_that_gives_no_times_is_not_limited() -> None:
    chunking = Chunking(MOST, 2.0)
    for _ in range(3):
        assert chunking.allowance(7).tokens(0) == MOST - 7
        chunking.observe(7, [(0, 10)], 0.0)
