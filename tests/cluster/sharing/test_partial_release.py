"""A debtor gives back some rBlocks of a span, and its creditor has them while the span lives on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distkv.demo.random_checkpoint import make_checkpoint
from tests.checkpoints import prompt_ids, reference_greedy
from tests.cluster.conftest import started
from tests.cluster.driving import driving, eventually

POOL_TOKENS = 1024
BEFORE, GUEST, OWN = prompt_ids(300, seed=1), prompt_ids(1100, seed=2), prompt_ids(600, seed=3)
GUEST_OUT = 300


def received(trace: Path, kind: str) -> list[dict[str, Any]]:
    """Messages of a kind from peers, as an instance recorded them."""
    lines = [json.loads(line) for line in trace.read_bytes().splitlines() if kind.encode() in line]
    events = [line["event"] for line in lines]
    return [event["message"] for event in events if event.get("message", {}).get("type") == kind]


@pytest.mark.slow
async def test_some_of_a_span_is_free_at_its_creditor_while_the_rest_is_used(tmp_path: Path) -> None:
    """A request of the creditor lacks a few rBlocks, and the debtor has room again for as many."""
    # Deep, so that the guest decodes for much longer than it takes to ask for memory and to give it back.
    checkpoint = make_checkpoint(tmp_path / "model", layers=64, vocab=320)
    trace = tmp_path / "i1.jsonl"
    options = [{}, {"trace_file": str(trace)}]
    with started(checkpoint, 2, POOL_TOKENS, instance_options=options, reclaim_after_s=0.1) as cluster:
        async with driving(cluster) as driver:
            before = await driver.start(BEFORE, 700, at="i0")
            await before.reached(1)
            guest = await driver.start(GUEST, GUEST_OUT, at="i0")
            await guest.reached(2)
            lent = (await driver.statuses())["i1"].instance.blocks.lent
            await before.cancel()
            own = await driver.start(OWN, 8, at="i1")

            async def has_begun() -> bool:
                return (await driver.statuses())["i1"].instance.running > 0

            await eventually(has_begun, 30, "the creditor has memory for its own request")
            # The guest stands still, so that it does not end meanwhile.
            async with driver.frozen("i0"):
                await own.finished()
                still_lent = (await driver.statuses())["i1"].instance.blocks.lent
                assert 0 < still_lent < lent and guest.finish_reason is None
            assert await guest.finished() == reference_greedy(checkpoint, GUEST, GUEST_OUT)
            assert own.tokens == reference_greedy(checkpoint, OWN, 8)
            counters = {name: status.instance.counters for name, status in (await driver.statuses()).items()}
            assert all(of_one.recomputed_tokens == 0 for of_one in counters.values())
            await driver.settled()
    releases = received(trace, "Release")
    assert len({release["span"]["span_id"] for release in releases}) == 1, "of one span"
    assert sum(len(release["positions"]) for release in releases) == lent - still_lent
    assert counters["i1"].reclaimed_blocks == lent - still_lent
