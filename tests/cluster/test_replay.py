"""What real processes decided is what the same controllers decide from their recordings."""

from __future__ import annotations

import pytest

from distkv.sim.replay import replay
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving

SECRET = "tell nobody"


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_loan_a_cancel_a_death_and_two_lives_are_decided_once_more(start, tmp_path):
    files = {name: tmp_path / f"{name}.jsonl" for name in ("gmanager", "i0", "i1", "i2")}
    instances = [{"trace_file": str(files[name])} for name in ("i0", "i1", "i2")]
    cluster = start(3, 512, instance_options=instances, gmanager_options={"trace_file": str(files["gmanager"])})
    async with driving(cluster) as driver:
        stopped = await driver.start(SECRET * 5, 200, at="i1", stop=("e", "a", " "))
        long = await driver.start(prompt_ids(900, seed=1), 60, at="i0")
        async with driver.frozen_at(long, 5, "i0"):
            creditor = await driver.creditor(long)
        cancelled = await driver.start(prompt_ids(40, seed=2), 400, at="i0", temperature=1.0)
        await cancelled.reached(2)
        await cancelled.cancel()
        driver.instance(creditor).kill()
        await long.finished()
        await stopped.finished()
        await driver.restart(creditor)
        cluster.restart_gmanager()
        await driver.generate(prompt_ids(30, seed=3), 8, temperature=1.0, logprobs=2)
        await driver.settled()
    cluster.close()
    for name, file in files.items():
        assert SECRET not in file.read_text(encoding="utf-8")
        with file.open("rb") as lines:
            lives = replay(lines, name)
        assert [one.difference for one in lives] == [None] * len(lives)
        assert len(lives) == (2 if name in ("gmanager", creditor) else 1)
        assert lives[0].num_commands > 10 and {one.name for one in lives} == {name}
