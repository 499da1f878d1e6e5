"""What the trace of a request shows: KV leaves while a chunk is computed, and steps run ahead of their results. By the
order of the messages: times would be those of a machine that does other things, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, traced

Event = dict[str, Any]


async def test_a_trace_shows_what_runs_beside_what(three, traces, expect):
    before = len(traced(traces[0]))
    async with driving(three) as driver:
        prompt = prompt_ids(1400, seed=2)
        expect(prompt, await driver.generate(prompt, 24, at="i0"), 24)
        await driver.settled()
    seen = (event for line in traced(traces[0])[before:] for event in _messages(json.loads(line)))
    events = [event | {"at": place} for place, event in enumerate(seen)]
    steps = {e["step_id"]: e for e in events if e["type"] == "Step"}
    results = {e["step_id"]: e for e in events if e["type"] == "StepResult"}

    # Step n+1 is sent before the result of n is back.
    ahead = [n for n in results if n + 1 in steps and steps[n + 1]["at"] < results[n]["at"]]
    assert len(ahead) >= len(results) // 2, f"{len(ahead)} of {len(results)} steps ran ahead"

    # A chunk's rBlocks are on their way to a creditor, from BlocksReady to Complete, while the worker has a later one.
    exposed = {
        (e["span"]["span_id"], e["index"]): e["at"] for e in events if e["type"] == "BlocksReady" and e["is_sent"]
    }
    moves = [
        (exposed[e["span"]["span_id"], e["index"]], e["at"])
        for e in events
        if e["type"] == "Complete" and not e["is_sent"]
    ]
    assert len(moves) >= 2
    chunks = [(steps[n]["at"], results[n]["at"]) for n in results if _is_chunk(steps[n])]
    beside = [move for move in moves if any(_overlap(move, chunk) for chunk in chunks)]
    assert len(beside) >= len(moves) // 2, f"{len(beside)} of {len(moves)} moves ran beside a chunk"


def _messages(record: Event) -> Iterator[Event]:
    """What came in by an event, and what was sent because of it."""
    if "message" in record["event"]:
        yield record["event"]["message"] | {"is_sent": False}
    for command in record["commands"]:
        if "body" in command:
            yield command["body"] | {"is_sent": True}


def _is_chunk(step: Event) -> bool:
    """Whether it is one of the prompt."""
    seq = step["seqs"][0]
    return bool(seq["end"] - seq["start"] > 1)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])
