"""A request that lies on two instances, with blocks going by each transport."""

from __future__ import annotations

import json

import pytest

from tests.checkpoints import prompt_ids
from tests.cluster.conftest import started
from tests.cluster.driving import driving
from tests.wire.links.peers import OPTIONAL, why_not

PROMPT, TOKENS = prompt_ids(1400, seed=11), 150


@pytest.mark.slow
@pytest.mark.parametrize("transport", OPTIONAL)
async def test_tokens_are_the_same_by_whatever_blocks_go(checkpoint, expect, transport):
    if why := why_not(transport):
        pytest.skip(why)
    with started(checkpoint, 2, 1024, tensor_transport=transport, log_json=True) as cluster:
        async with driving(cluster) as driver:
            request = await driver.start(PROMPT, TOKENS, at="i0")
            expect(PROMPT, await request.finished(), TOKENS)
            statuses = await driver.statuses()
            assert statuses["i1"].instance.counters.kv_bytes > 0, "blocks were pulled"
            assert statuses["i0"].instance.counters.recomputed_tokens == 0
            await driver.settled()
        logs = "".join(path.read_text() for path in cluster.log_dir.glob("*.log"))
    linked = [json.loads(line) for line in logs.splitlines() if '"event":"linked"' in line.replace('": ', '":')]
    assert {line["transport"] for line in linked} == {transport}
