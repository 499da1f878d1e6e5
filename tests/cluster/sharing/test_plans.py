"""Two real instances under a policy that plans: blocks of a running request go where the gManager planned, and no token
is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.types import PolicyName
from distkv.wire.messages.profile import Point
from distkv.wire.profile_file import ProfileFile, save_profile
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, eventually
from tests.control.performance.profiles import HOST, make_profile

TOKENS = 1000
PROFILE = make_profile(attention=(Point(1000, 0.2),), serving=(Point(1000, 0.02),), links={"host": HOST})
"""By which attention to keys elsewhere takes a tenth, so that it pays to move some, however short steps really are."""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("policy", ["greedy", "even"])
async def test_what_is_planned_is_carried_out_for_a_running_request(start, expect, tmp_path: Path, policy: PolicyName):
    save_profile(ProfileFile(profile=PROFILE), tmp_path / "profile.json")
    settings = {"profile": str(tmp_path / "profile.json")}
    cluster = start(2, 2048, policy=policy, heartbeat_s=0.2, instance_options=settings)
    async with driving(cluster) as driver:
        run = await driver.start(prompt_ids(700), TOKENS, at="i0")
        await run.reached(1)
        assert set(await driver.spans(run)) == {"i0"}, "all of it fits"

        async def has_moved() -> int:
            return (await driver.spans(run)).get("i1", 0)

        async def is_judged() -> bool:
            state = await (await driver.client()).cluster()
            assert state is not None
            return any(plan.achieved_tokens_per_s is not None and not plan.dropped for plan in state.plans)

        async with driver.slowed("i0"):
            await eventually(has_moved, 20, "blocks have left")
        assert run.task is not None and not run.task.done(), "while it generates"
        async with driver.frozen("i0"):  # it does not end meanwhile
            await eventually(is_judged, 30, "what heartbeats have shown is judged")
        counters = (await driver.statuses())["i0"].instance.counters
        assert counters.planned_moves >= 1 and counters.borrows == 0, "nothing was borrowed but by plan"
        explained = (await (await driver.client()).explain(run.request_id)).explained
        assert {"planned", "left"} <= {entry.happened for entry in explained.history}
        expect(run.prompt, await run.finished(), TOKENS)
        await driver.settled()
