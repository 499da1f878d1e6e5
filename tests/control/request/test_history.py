"""Histories: what happened to a request, bounded, and gone with it but for the newest."""

from __future__ import annotations

import pytest

from distkv.control.request.history import MAX_ENDED, MAX_ENTRIES, MAX_WHY, Histories
from tests.control.parts import calls


def history(histories: Histories, request_id: str = "r") -> list[tuple[str, float, str, int, int]]:
    found = histories.find(request_id)
    assert found is not None
    told = found.told(histories.now)
    return [(one.happened, one.ago_s, one.instance_id, one.num_blocks, one.times) for one in told]


def test_what_happens_again_is_one_entry() -> None:
    histories = Histories()
    histories.begin("r", 10)
    for now in (1.0, 2.0, 3.0):
        histories.now = now
        histories.note("r", "borrowed", instance_id="p", why="relieve", blocks=4)
    histories.note("r", "borrowed", instance_id="q", why="relieve", blocks=4)
    for now in (4.0, 5.0):
        histories.now = now
        histories.note("r", "reclaimed", instance_id="p", blocks=6)
    assert history(histories) == [
        ("borrowed", 2.0, "p", 12, 3),
        ("borrowed", 2.0, "q", 4, 1),
        ("reclaimed", 0.0, "p", 6, 2),
    ]


def test_the_oldest_entries_are_left_out_and_counted() -> None:
    histories = Histories()
    histories.begin("r", 10)
    for number in range(MAX_ENTRIES + 5):
        histories.note("r", "left", instance_id=f"p{number}", blocks=1)
    found = histories.find("r")
    assert found is not None and found.left_out == 5 and len(history(histories)) == MAX_ENTRIES
    assert history(histories)[0][2] == "p5"


def test_the_newest_ended_ones_are_remembered() -> None:
    histories = Histories()
    for number in range(MAX_ENDED + 3):
        histories.begin(f"r{number}", 10)
        histories.end(f"r{number}", "x" * 5000)
    assert histories.find("r2") is None
    found = histories.find("r3")
    assert found is not None and len(found.entries[-1].why) == MAX_WHY
    histories.note("r3", "left", blocks=1)
    assert [entry.happened for entry in found.entries] == ["ended"], "it has ended"
    histories.validate([])


def test_a_request_is_found_by_what_it_was_made_of() -> None:
    histories = Histories()
    for name in ("a-1", "a-2", "ab", "b", "b~1"):
        histories.begin(name, 10)
    for name in ("a-1", "b"):
        histories.end(name, "done")
    assert (
        histories.named("b") == ["b~1", "b"] and histories.named("a") == ["a-2", "a-1"] and histories.named("c") == []
    )


@pytest.mark.parametrize("num_requests", [10, 1_000, 10_000])
def test_a_note_costs_the_same_however_many_requests_there_are(num_requests: int) -> None:
    histories = Histories()
    for number in range(num_requests):
        histories.begin(f"r{number}", 10)
    assert calls(lambda: histories.note("r5", "left", instance_id="p", blocks=1)) < 12
    assert calls(lambda: histories.end("r5", "done")) < 16
