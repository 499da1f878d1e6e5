"""Reading never keeps the loop for long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import zmq

from distkv.errors import LinkClosed
from distkv.wire.sockets import loop_socket
from distkv.wire.sockets.loop_socket import MAX_PARTS, LoopSocket
from distkv.wire.sockets.waiting_messages import Excess, WaitingLimit
from tests.waiting import until

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


async def test_what_a_send_found_out_wakes_the_reader_that_waits() -> None:
    """Sending takes away ZeroMQ's sign that a message has come: it is asked for again, or the reader sleeps on."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as theirs:
        ours.bind("inproc://b")
        theirs.connect("inproc://b")
        end = LoopSocket(ours, "b")
        for index in range(100):
            reading = asyncio.create_task(end.recv())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            theirs.send(b"%d" % index)
            assert end.send((b"answer", b"of two frames"))
            assert await asyncio.wait_for(reading, 20) == [b"%d" % index]
            assert theirs.recv_multipart() == [b"answer", b"of two frames"]
        end.close(0)


async def test_a_reader_that_asks_seldom_misses_nothing() -> None:
    """Read at once, by waiting, after a cancelled wait, and while another call takes the message before."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as sending, context.socket(zmq.PULL) as receiving:
        receiving.bind("inproc://c")
        sending.connect("inproc://c")
        end = LoopSocket(receiving, "c")
        for _ in range(100):
            cancelled = asyncio.create_task(end.recv())
            await asyncio.sleep(0)
            sending.send(b"1")
            cancelled.cancel()
            await asyncio.wait((cancelled,))
            assert await asyncio.wait_for(end.recv(), 20) == [b"1"]
            waiting = asyncio.create_task(end.recv())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            sending.send(b"2")
            sending.send(b"3")
            assert end.recv_now() == [b"2"]
            assert await asyncio.wait_for(waiting, 20) == [b"3"]
            assert not end.has_waiting()
        end.close(0)


async def test_what_many_sends_found_out_wakes_the_reader_that_waits() -> None:
    """One that nobody takes is left out, and the others are sent."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as ours, context.socket(zmq.DEALER) as theirs:
        ours.set(zmq.ROUTER_MANDATORY, 1)
        theirs.set(zmq.IDENTITY, b"theirs")
        theirs.connect(f"tcp://127.0.0.1:{ours.bind_to_random_port('tcp://127.0.0.1')}")
        end = LoopSocket(ours, "d")
        theirs.send(b"hello")
        assert await asyncio.wait_for(end.recv(), 20) == [b"theirs", b"hello"]
        for index in range(100):
            reading = asyncio.create_task(end.recv())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            theirs.send(b"%d" % index)
            end.send_each([(b"theirs", b"1"), (b"nobody", b"2"), (b"theirs", zmq.Frame(b"3"))])
            assert await asyncio.wait_for(reading, 20) == [b"theirs", b"%d" % index]
            assert (theirs.recv(), theirs.recv()) == (b"1", b"3")
        end.close(0)


async def test_a_message_of_very_many_parts_comes_in_pieces() -> None:
    """Each with the route, and with as many frames as it had parts; the message behind it comes whole."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as ours, context.socket(zmq.DEALER) as theirs:
        theirs.set(zmq.IDENTITY, b"theirs")
        theirs.connect(f"tcp://127.0.0.1:{ours.bind_to_random_port('tcp://127.0.0.1')}")
        end = LoopSocket(ours, "g")
        parts = [b"%d" % index for index in range(3 * MAX_PARTS)]
        theirs.send_multipart(parts)
        theirs.send(b"next")
        taken: list[bytes | memoryview] = []
        while len(taken) < len(parts):
            route, *piece = await asyncio.wait_for(end.recv(), 20)
            assert route == b"theirs" and len(piece) < MAX_PARTS
            taken += piece
        assert taken == parts[: MAX_PARTS - 1] + [b""] * (2 * MAX_PARTS + 1)
        assert await asyncio.wait_for(end.recv(), 20) == [b"theirs", b"next"]
        end.close(0)


class Taker:
    """Takes what is delivered, and says when it has come."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.taken: list[bytes] = []
        self.rests: list[int] = []
        self.now_s = 0.0
        self._cost_s = cost_s
        self._moved = asyncio.Event()

    def take(self, frames: list[bytes | memoryview]) -> None:
        self.taken.append(bytes(frames[-1]))
        self.now_s += self._cost_s
        self._moved.set()

    def rest(self) -> None:
        self.rests.append(len(self.taken))

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.taken) < count:
                self._moved.clear()
                await self._moved.wait()


async def test_who_is_delivered_to_misses_nothing_and_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes alone, many at once, and while the signs are taken away by other calls."""
    taker = Taker(COST_S)
    monkeypatch.setattr(loop_socket, "time", SimpleNamespace(monotonic=lambda: taker.now_s))
    with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as theirs:
        ours.bind("inproc://e")
        theirs.connect("inproc://e")
        end = LoopSocket(ours, "e")
        for index in range(MESSAGES):
            theirs.send(b"%d" % index)
        delivering = asyncio.create_task(end.deliver(taker.take, taker.rest))
        await taker.wait_for(MESSAGES)
        most = max(after - before for before, after in zip([0, *taker.rests], taker.rests, strict=False))
        assert most * COST_S <= 0.005
        for index in range(MESSAGES, MESSAGES + 100):
            await asyncio.sleep(0)
            theirs.send(b"%d" % index)
            if index % 3 == 0:
                assert end.send((b"answer",))
            elif index % 3 == 1:
                end.has_waiting()
            await taker.wait_for(index + 1)
            assert not end.has_waiting()
        assert taker.taken == [b"%d" % index for index in range(MESSAGES + 100)]
        assert taker.rests[-1] == len(taker.taken)
        delivering.cancel()
        await asyncio.wait((delivering,))
        theirs.send(b"later")
        assert await asyncio.wait_for(end.recv(), 20) == [b"later"]
        end.close(0)


async def test_who_is_delivered_to_has_one_turn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often something happens meanwhile: turns that grow in number would leave others none."""
    taker = Taker(cost_s=1.0)
    monkeypatch.setattr(loop_socket, "time", SimpleNamespace(monotonic=lambda: taker.now_s))
    with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as theirs:
        ours.bind("inproc://f")
        theirs.connect("inproc://f")
        end = LoopSocket(ours, "f")
        for index in range(100):
            theirs.send(b"%d" % index)
        delivering = asyncio.create_task(end.deliver(taker.take, taker.rest))
        await taker.wait_for(1)
        for _ in range(20):
            before = len(taker.taken)
            end._signalled()
            end._signalled()
            assert len(taker.taken) == before, "a turn is scheduled, and takes what is here"
            await taker.wait_for(before + 1)
        delivering.cancel()
        await asyncio.wait((delivering,))
        end.close(0)


@pytest.mark.parametrize("delivered", [True, False])
async def test_who_takes_too_slowly_reads_ahead_and_is_told_who_sends_too_much(
    monkeypatch: pytest.MonkeyPatch, delivered: bool
) -> None:
    """However slowly: one message in a turn, and hundreds wait. The one that sends little is not behind it."""
    taker = Taker(cost_s=1.0)
    told: list[Excess] = []
    read: list[int] = []
    monkeypatch.setattr(loop_socket, "time", SimpleNamespace(monotonic=lambda: taker.now_s))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as ours, context.socket(zmq.DEALER) as many:
        port = ours.bind_to_random_port("tcp://127.0.0.1")
        many.set(zmq.IDENTITY, b"many")
        many.connect(f"tcp://127.0.0.1:{port}")
        end = LoopSocket(
            ours,
            "h",
            limit=WaitingLimit(frames=MESSAGES // 2),
            on_excess=told.append,
            on_read=lambda _, frames, _size_bytes: read.append(frames),
        )
        for index in range(MESSAGES):
            many.send(b"%d" % index)

        async def receive() -> None:
            while True:
                taker.take(await end.recv())

        await until(lambda: len(read) or ours.poll(0))
        taking = asyncio.create_task(end.deliver(taker.take, taker.rest) if delivered else receive())
        await until(lambda: told)
        assert [one.sender for one in told] == [b"many"]
        assert len(taker.taken) < MESSAGES // 2 < len(read)
        await until(lambda: len(taker.taken) > MESSAGES // 2)
        assert taker.taken[: MESSAGES // 2] == [b"%d" % index for index in range(MESSAGES // 2)]
        taking.cancel()
        await asyncio.wait((taking,))
        end.close(0)


async def test_what_a_taker_raises_and_the_end_of_a_socket_end_its_delivery() -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as theirs:
        ours.bind("inproc://f")
        theirs.connect("inproc://f")
        end = LoopSocket(ours, "f")

        def refuse(_: list[bytes | memoryview]) -> None:
            raise ValueError("not that")

        delivering = asyncio.create_task(end.deliver(refuse, lambda: None))
        await asyncio.sleep(0)
        theirs.send(b"1")
        with pytest.raises(ValueError, match="not that"):
            await asyncio.wait_for(delivering, 20)
        taker = Taker()
        delivering = asyncio.create_task(end.deliver(taker.take, taker.rest))
        theirs.send(b"2")
        await taker.wait_for(1)
        end.close(0)
        with pytest.raises(LinkClosed):
            await asyncio.wait_for(delivering, 20)
