"""Prompts that are computed here and leave for creditors while they are."""

from __future__ import annotations

from distkv.sim.profiles.built_in import built_in
from distkv.sim.run import simulate
from tests.sim.timed.parts import spec, trace


def test_a_prompt_that_began_in_a_full_pool_is_computed_as_fast_as_others_when_there_is_room() -> None:
    """It had one slot for its rBlocks to leave through, and kept to it until its end: 36 s instead of 6."""
    four = spec(instances=4, kv_tokens=20_000, profile=built_in("a100-llama2-7b"))
    (alone,) = simulate(trace((0.0, 36_000, 4)), four).outcomes
    first, second = simulate(trace((0.0, 36_000, 4), (0.01, 36_000, 4)), four).outcomes
    assert first.first_s < 1.05 * alone.first_s
    assert second.first_s < 2.5 * alone.first_s
