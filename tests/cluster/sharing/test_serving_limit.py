"""What serving a debtor takes of a creditor's own steps is measured where it happens."""

from __future__ import annotations

import pytest

from tests.checkpoints import prompt_ids
from tests.cluster.conftest import started
from tests.cluster.driving import driving


@pytest.mark.slow
async def test_a_creditor_knows_how_much_of_its_own_steps_it_serves(checkpoint, expect):
    """Its limit is passed at once; nobody loses for that what he has borrowed."""
    guest_prompt, own_prompt = prompt_ids(1300), prompt_ids(40, seed=1)
    with started(checkpoint, 2, 1024, max_serve_fraction=0.001) as cluster:
        async with driving(cluster) as driver:
            guest = await driver.start(guest_prompt, 600, at="i0")
            async with driver.frozen_at(guest, 2, "i0"):
                assert (await driver.statuses())["i1"].instance.serve_fraction == 0, "it computes nothing for itself"
            own = await driver.start(own_prompt, 250, at="i1")
            expect(own_prompt, await own.finished(), 250)
            counters = (await driver.statuses())["i1"].instance.counters
            assert 0 < counters.step_serve_s <= counters.serve_s
            expect(guest_prompt, await guest.finished(), 600)
            await driver.settled()
