"""Very many requests that end by one cause: in parts, so that the streams of others go on meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from distkv.control import commands as c
from distkv.control.request.lifecycle import MOST_ENDED
from distkv.control.rmanager.clients import CLIENT_TIMEOUT_S
from distkv.types import SamplingParams
from distkv.wire.messages import to_rmanager as tr
from tests.control.rmanager.test_state_machine import CLIENT, STRANGER, Running
from tests.token_ids import prompt_fields

COUNT = 3 * MOST_ENDED + 5


def submit(running: Running, name: str, route: bytes, timeout_s: float | None = None) -> None:
    prompt = (1, 2, 3)
    params = SamplingParams(max_tokens=16, temperature=0.0)
    message = tr.Submit(request_id=name, params=params, timeout_s=timeout_s, **prompt_fields(prompt))
    running.handle(c.Tokenized(message, array("i", prompt), route))


def goes(running: Running) -> None:
    running.handle(c.ClientGone(CLIENT))


def is_silent(running: Running) -> None:
    """The other is heard."""
    for _ in range(round(2 * CLIENT_TIMEOUT_S)):
        if len(running.rm.state.sequences) <= COUNT:
            return
        running.handle(c.ClientRequested(STRANGER, tr.KeepAlive()), after_s=0.5)
        running.handle(c.Tick())


def is_late(running: Running) -> None:
    running.handle(c.Tick(), after_s=5.0)


def is_drained(running: Running) -> None:
    running.handle(c.DrainRequested(60.0))


@pytest.mark.parametrize("cause", [goes, is_silent, is_late, is_drained])
def test_they_end_in_parts(cause: Callable[[Running], None]) -> None:
    running = Running(peers="", max_num_seqs=1)
    sequences = running.rm.state.sequences
    submit(running, "theirs", STRANGER)
    for number in range(COUNT):
        submit(running, f"r{number}", CLIENT, 5.0 if cause is is_late else None)
    cause(running)
    num_left = len(sequences) - 1
    assert num_left == COUNT - MOST_ENDED
    while num_left:
        assert running.rm.next_deadline() <= running.now, "the rest is due at once"
        running.handle(c.Tick())
        assert num_left - len(sequences) + 1 == min(MOST_ENDED, num_left)
        num_left = len(sequences) - 1
    assert list(sequences) == ["theirs"]
    assert running.rm.next_deadline() > running.now


def test_one_of_the_same_name_that_comes_meanwhile_finds_it_ended() -> None:
    running = Running(peers="", max_num_seqs=1)
    for number in range(MOST_ENDED + 2):
        submit(running, f"r{number}", CLIENT)
    running.handle(c.ClientGone(CLIENT))
    anew = list(running.rm.state.sequences)[-1]
    submit(running, anew, STRANGER)
    assert running.rm.state.sequences[anew].request.route == STRANGER
    running.handle(c.Tick())
    assert list(running.rm.state.sequences) == [anew]


def test_what_ended_meanwhile_or_came_anew_is_left_alone() -> None:
    running = Running(peers="", max_num_seqs=1)
    sequences = running.rm.state.sequences
    for number in range(MOST_ENDED + 1):
        submit(running, f"r{number}", CLIENT)
    running.handle(c.ClientGone(CLIENT))
    (last,) = sequences
    running.rm._parts.requests.cancel(last, running.now)
    submit(running, last, STRANGER)
    running.handle(c.Tick())
    assert list(sequences) == [last]


def test_none_of_a_client_that_left_begins_meanwhile() -> None:
    """The oldest ended first, and of the others some began in its place, to end a moment later."""
    running = Running(peers="", max_num_seqs=1)
    state = running.rm.state
    for number in range(COUNT):
        submit(running, f"r{number}", CLIENT)
    submit(running, "theirs", STRANGER)
    began = {seq.request_id for seq in state.running()}
    goes(running)
    while len(state.sequences) > 1:
        running.handle(c.Tick(), after_s=0.01)
        began.update(seq.request_id for seq in state.running())
    assert began == {"r0", "theirs"}
