"""Reading never keeps the loop for long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import zmq

from distkv.wire.sockets import loop_socket
from distkv.wire.sockets.loop_socket import LoopSocket

MESSAGES = 500
COST_S = 0.0005


async def test_a_reader_that_always_finds_a_message_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its own work with each message takes."""
    now_s = 0.0
    monkeypatch.setattr(loop_socket, "time", SimpleNamespace(monotonic=lambda: now_s))
    with zmq.Context() as context, context.socket(zmq.PUSH) as sending, context.socket(zmq.PULL) as receiving:
        receiving.bind("inproc://a")
        sending.connect("inproc://a")
        for index in range(MESSAGES):
            sending.send(b"%d" % index)
        reader = LoopSocket(receiving, "a")
        turns = 0

        async def other_task() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(other_task())
        longest_s, turn, turn_began_s = 0.0, 0, 0.0
        for index in range(MESSAGES):
            assert await reader.recv() == [b"%d" % index]
            if turns != turn:
                turn, turn_began_s = turns, now_s
            now_s += COST_S
            longest_s = max(longest_s, now_s - turn_began_s)
        other.cancel()
        reader.close(0)
    assert longest_s <= 0.005
