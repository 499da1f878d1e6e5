"""Many requests of one client share its connection to an instance; a bad one among them fails alone."""

from __future__ import annotations

import msgspec
import pytest

from distkv import RequestFailed, RequestRefused, SamplingParams
from distkv.wire.codec import MAX_MESSAGE_BYTES
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, eventually

STREAMS, MAX_TOKENS = 8, 110


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("stop", ("x" * MAX_MESSAGE_BYTES,), RequestRefused),
        ("top_p", 7.0, RequestFailed),
        ("seed", "many", RequestFailed),
    ],
    ids=["over the limit", "out of range", "of the wrong type"],
)
async def test_what_no_instance_can_read_costs_only_itself(three, expect, field, value, error):
    async with driving(three) as driver:
        poison = SamplingParams(max_tokens=4)
        msgspec.structs.force_setattr(poison, field, value)
        client = await driver.client("i1")
        async with driver.frozen("i1"):  # none of them ends before
            runs = [await driver.start(prompt_ids(40, seed=seed), MAX_TOKENS, at="i1") for seed in range(STREAMS)]

            async def are_there() -> bool:
                return len((await driver.statuses())["i1"].requests) == STREAMS

            await eventually(are_there, 20, "they were not taken in")
            with pytest.raises(error):
                await client.submit(prompt_ids(40, seed=99), poison)
            assert all(run.finish_reason is None for run in runs)
        for run in runs:
            expect(run.prompt, await run.finished(), MAX_TOKENS)
        await driver.settled()
