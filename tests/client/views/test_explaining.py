"""Asking a whole cluster about one request."""

from __future__ import annotations

from typing import Any

import pytest

from distkv import AsyncClient, RequestUnknown
from distkv.client.views.explaining import Explanation, without_http_prefix
from distkv.wire.messages.to_client import Dispatched, Explained, HistoryEntry
from distkv.wire.messages.to_gmanager import ExplainQuery
from tests.client.fakes import count_up


async def test_whoever_knows_it_is_found_and_the_gmanager_says_where_it_was_sent(start_fakes):
    cluster = start_fakes(count_up, count_up)
    async with AsyncClient(cluster.address) as client:
        explanation = await client.explain("chatcmpl-i1-r")
    assert explanation.explained.instance_id == "i1" and explanation.dispatched is not None
    lines = explanation.sentences()
    assert "sent it to i0, which had 3 requests, none waiting" in lines[0]
    assert lines[1].startswith("Request i1-r is served by i1 and runs: it came 3.0 s ago with 30 tokens")
    assert "50% of it is remote" in lines[2] and "2.5 s ago it borrowed 1 rBlock from other so that" in lines[3]


@pytest.mark.parametrize(
    ("name", "asked"), [("cmpl-r", "r"), ("chatcmpl-r", "r"), ("chatcmpl-cmpl-r", "cmpl-r"), ("r", "r"), ("cmp", "cmp")]
)
def test_the_prefix_of_an_http_response_is_taken_off_once(name: str, asked: str) -> None:
    assert without_http_prefix(name) == asked


async def test_what_was_sent_again_is_one_request_with_what_it_was_before(start_fakes):
    cluster = start_fakes(count_up, count_up)
    async with AsyncClient(cluster.address) as client:
        explanation = await client.explain("i1-r~0123456789abcdef")
        assert explanation.dispatched is not None and explanation.explained.request_id == "i1-r"
        with pytest.raises(RequestUnknown):
            await client.explain("i1-r~mine")


async def test_an_instance_is_asked_as_well_as_a_gmanager(start_fakes):
    cluster = start_fakes(count_up, count_up)
    async with AsyncClient(cluster.instances[0].address) as client:
        explanation = await client.explain("i1-r")
        assert explanation.dispatched is None and "No gManager remembers" in explanation.sentences()[0]
        assert await client.cluster() is None
    assert not cluster.gmanager.of(ExplainQuery)


async def test_who_is_told_that_too_many_ask_asks_again(start_fakes, monkeypatch):
    cluster = start_fakes(count_up)
    refused, known = Dispatched(query="i0-r", retry_after_s=0.02), cluster.gmanager.answers

    def answers(route: bytes, body: Any) -> list[Any]:
        too_many = isinstance(body, ExplainQuery) and len(cluster.gmanager.of(ExplainQuery)) < 2
        return [refused] if too_many else known(route, body)

    monkeypatch.setattr(cluster.gmanager, "answers", answers)
    async with AsyncClient(cluster.address) as client:
        assert (await client.explain("i0-r")).dispatched == Dispatched(
            query="i0-r", request_id="i0-r", instance_id="i0", load=3, num_ready=2
        )
        assert len(cluster.gmanager.of(ExplainQuery)) == 3
        refused = Dispatched(query="i0-r", retry_after_s=60.0)
        cluster.gmanager.seen.clear()
        explanation = await client.explain("i0-r")
    assert explanation.dispatched is None and explanation.explained.instance_id == "i0"


async def test_one_that_nobody_knows_is_an_error(start_fakes):
    cluster = start_fakes(count_up, count_up)
    cluster.instances[1].die()
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestUnknown, match="no request 'gone' is known: asked 2 instances, of which 1 did not"):
            await client.explain("gone")


def test_what_a_later_version_says_is_shown_as_it_is() -> None:
    entry = HistoryEntry(
        happened="teleported", ago_s=1.0, instance_id="p", why="{here.__class__}", num_blocks=2, times=3
    )
    (line,) = [
        line
        for line in Explanation(
            Explained(query="r", instance_id="i", request_id="r", state="ended", history=(entry,))
        ).sentences()
        if "teleported" in line
    ]
    assert line == "1.0 s ago teleported (2 rBlocks, p): {here.__class__} (3 times by then)."


def test_what_went_or_came_home_bit_by_bit_is_a_sum_with_its_reason() -> None:
    left = HistoryEntry(happened="left", ago_s=4.0, instance_id="p", num_blocks=1350, times=11)
    home = HistoryEntry(happened="came_home", ago_s=1.0, instance_id="p", why="there was room", num_blocks=6, times=2)
    one = Explained(query="r", instance_id="i", request_id="r", state="ended", history=(left, home))
    assert Explanation(one).sentences()[-2:] == [
        "4.0 s ago 1,350 rBlocks went to p, in 11 moves.",
        "1.0 s ago 6 rBlocks came home from p, in 2 moves: there was room.",
    ]


def test_who_waits_for_a_place_is_not_told_that_memory_is_lacking() -> None:
    known = dict(query="r", instance_id="i", request_id="r", state="waiting", lacks_blocks=2, num_before=3)
    full = Explained(room_blocks=9, full_batch=64, **known)
    assert Explanation(full).sentences()[-1] == (
        "It waits for a place: all 64 of the batch (--max-num-seqs) are taken; 3 requests came before it, waiting too; "
        "there is memory for it at i."
    )
    for other in (Explained(room_blocks=1, full_batch=64, **known), Explained(room_blocks=9, **known)):
        assert Explanation(other).sentences()[-1].startswith("To go on it lacks 2 rBlocks")


def test_where_it_was_before_is_said_first() -> None:
    gone = HistoryEntry(
        happened="ended", ago_s=2.0, why="its client was told to send it to i1, which has memory for it"
    )
    former = Explained(query="r", instance_id="i0", request_id="r", state="ended", came_ago_s=5.0, history=(gone,))
    now = Explained(query="r", instance_id="i1", request_id="r~1", state="running", came_ago_s=2.0)
    lines = Explanation(now, None, (former,)).sentences()
    assert lines[1] == "Request r came 5.0 s ago and was served by i0."
    assert lines[2] == "2.0 s ago it ended: its client was told to send it to i1, which has memory for it."
    assert lines[3].startswith("Request r~1 is served by i1 and runs")


@pytest.mark.parametrize(
    ("happened", "one", "several"),
    [
        ("begins", "it had a place for its 1 rBlock", "it had a place for its 3 rBlocks"),
        ("lost", "it lost 1 rBlock at p, to be computed again", "it lost 3 rBlocks at p, to be computed again"),
        ("planned", "a gManager planned to move 1 rBlock to p", "a gManager planned to move 3 rBlocks to p"),
        (
            "dropped",
            "a plan of a gManager to move 1 rBlock to p was dropped",
            "a plan of a gManager to move 3 rBlocks to p was dropped",
        ),
    ],
)
def test_a_sentence_holds_for_one_and_for_several(happened: str, one: str, several: str) -> None:
    entries = (HistoryEntry(happened=happened, ago_s=1.0, instance_id="p", num_blocks=count) for count in (1, 3))
    explained = Explained(query="r", instance_id="i", request_id="r", state="ended", history=tuple(entries))
    assert Explanation(explained).sentences()[-2:] == [f"1.0 s ago {one}.", f"1.0 s ago {several}."]
