"""What was read ahead: each sender in order, all in turn, and none with too much."""

from __future__ import annotations

from distkv.wire.sockets.waiting_messages import Excess, Frames, WaitingLimit, WaitingMessages

NO_LIMIT = WaitingLimit()


class Waiting(WaitingMessages):
    """Of a ROUTER. told: who exceeded a limit."""

    def __init__(self, limit: WaitingLimit = NO_LIMIT) -> None:
        self.told: list[Excess] = []
        super().__init__(True, limit, self.told.append)

    def put_some(self, sender: bytes, count: int, source: int = 5, content: bytes = b"x") -> None:
        for index in range(count):
            self.put([sender, content, b"%d" % index], source)

    def take_all(self) -> list[tuple[Frames, int]]:
        taken = []
        while self:
            taken.append(self.take())
        return taken


def test_senders_are_taken_in_turn_and_each_in_order() -> None:
    waiting = Waiting()
    waiting.put_some(b"a", 3)
    waiting.put_some(b"b", 1, source=6)
    assert waiting.take_all() == [
        ([b"a", b"x", b"0"], 5),
        ([b"b", b"x", b"0"], 6),
        ([b"a", b"x", b"1"], 5),
        ([b"a", b"x", b"2"], 5),
    ]
    assert not waiting.told


def test_one_of_whom_too_many_frames_or_bytes_wait_is_told_once_and_keeps_what_it_has() -> None:
    waiting = Waiting(NO_LIMIT._replace(frames=10, size_bytes=300))
    waiting.put_some(b"a", 20)
    waiting.put_some(b"b", 4, source=6, content=bytes(100))
    waiting.put_some(b"c", 1)
    assert [(one.sender, one.source) for one in waiting.told] == [(b"a", 5), (b"b", 6)]
    assert waiting.told[1].size_bytes == 3 * 101, "without the route, as it came"
    kept = [frames[0] for frames, _ in waiting.take_all()]
    assert {sender: kept.count(sender) for sender in (b"a", b"b", b"c")} == {b"a": 6, b"b": 3, b"c": 1}
    waiting.put_some(b"a", 1)
    assert not waiting
    waiting.forgive()
    waiting.put_some(b"a", 1)
    assert waiting and len(waiting.told) == 2


def test_what_waits_of_one_that_was_stopped_is_counted_neither_up_nor_down() -> None:
    """It goes on sending, by another connection, before what it had here was taken."""
    waiting = Waiting(NO_LIMIT._replace(frames=10, all_frames=20))
    for _ in range(10):
        waiting.put_some(b"a", 20)
        waiting.forgive()
        waiting.put_some(b"a", 3, source=6)
        assert len(waiting.take_all()) == 9
    assert [one.sender for one in waiting.told] == [b"a"] * 10
    waiting.put_some(b"b", 5)
    assert len(waiting.told) == 10, "nothing is left of it in the sums"


def test_where_all_have_too_much_it_is_the_largest_and_the_others_stay() -> None:
    waiting = Waiting(NO_LIMIT._replace(all_frames=40))
    waiting.put_some(b"a", 4)
    waiting.put_some(b"big", 10)
    waiting.put_some(b"c", 7)
    assert [one.sender for one in waiting.told] == [b"big"]
    waiting.put_some(b"a", 5)
    assert len(waiting.told) == 1, "what is told of counts no more"
    waiting = Waiting(NO_LIMIT._replace(all_bytes=1000))
    waiting.put_some(b"many", 40)
    waiting.put_some(b"long", 3, content=bytes(400))
    assert [one.sender for one in waiting.told] == [b"long"]


def test_what_is_taken_counts_no_more() -> None:
    waiting = Waiting(NO_LIMIT._replace(frames=10, all_frames=10))
    for _ in range(10):
        waiting.put_some(b"a", 5)
        waiting.take_all()
    assert not waiting.told


def test_of_a_connection_that_was_shut_nothing_more_is_kept() -> None:
    waiting = Waiting()
    waiting.put_some(b"a", 2, source=5)
    waiting.put_some(b"b", 2, source=6)
    assert waiting.drop(6) == b"b" and waiting.drop(7) is None
    waiting.put_some(b"b", 2, source=6)
    assert len(waiting.take_all()) == 4
    assert not waiting.told


def test_who_has_one_sender_has_the_same_bounds() -> None:
    told: list[Excess] = []
    waiting = WaitingMessages(False, NO_LIMIT._replace(frames=3), told.append)
    for index in range(10):
        waiting.put([b"%d" % index], -1)
    assert [one.sender for one in told] == [b""]
    assert [waiting.take()[0] for _ in range(4)] == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert not waiting
