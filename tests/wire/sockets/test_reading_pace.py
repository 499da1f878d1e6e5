"""Who sends far more than is read is found, by messages and not by bytes; who has much waiting is not."""

from __future__ import annotations

from distkv.wire.sockets.flood_guard import QUOTA_MESSAGES
from distkv.wire.sockets.options import SEND_QUEUE_MESSAGES
from distkv.wire.sockets.reading_pace import MOST_UNREAD_FRAMES, ReadingPace

SHORT_BYTES, LONG_BYTES = 60, 2**20
FLOOD_BYTES = 2 * MOST_UNREAD_FRAMES * SHORT_BYTES


def test_short_messages_without_an_end_are_too_many() -> None:
    pace = ReadingPace()
    assert not pace.is_too_far_behind(3, FLOOD_BYTES, 0, 0)
    assert not pace.is_too_far_behind(3, 2 * FLOOD_BYTES, 10 * SHORT_BYTES, 10)
    assert pace.is_too_far_behind(3, 2 * FLOOD_BYTES, QUOTA_MESSAGES * SHORT_BYTES, QUOTA_MESSAGES)


def test_a_thousand_long_prompts_are_not_nor_what_a_pause_has_left() -> None:
    pace = ReadingPace()
    burst = 1000 * LONG_BYTES
    for read in range(1000):
        assert not pace.is_too_far_behind(3, burst, read * LONG_BYTES, read)
    pace = ReadingPace()
    for read in range(0, MOST_UNREAD_FRAMES, 1000):
        assert not pace.is_too_far_behind(3, MOST_UNREAD_FRAMES * SHORT_BYTES, read * SHORT_BYTES, read)


def test_long_prompts_behind_all_that_a_queue_holds_are_not_too_many() -> None:
    """The messages before were short, and say nothing of these."""
    assert QUOTA_MESSAGES >= 2 * SEND_QUEUE_MESSAGES
    pace = ReadingPace()
    received = SEND_QUEUE_MESSAGES * SHORT_BYTES + 1000 * LONG_BYTES
    for read in range(0, SEND_QUEUE_MESSAGES + 1, 1000):
        assert not pace.is_too_far_behind(3, received, read * SHORT_BYTES, read)


def test_long_messages_read_first_hide_no_flood_for_long() -> None:
    pace = ReadingPace()
    received = 1000 * LONG_BYTES + 20 * MOST_UNREAD_FRAMES * SHORT_BYTES
    assert not pace.is_too_far_behind(3, received, 0, 0)
    read_bytes, read_frames = 1000 * LONG_BYTES, 1000
    verdicts = []
    for _ in range(2):
        read_bytes, read_frames = read_bytes + QUOTA_MESSAGES * SHORT_BYTES, read_frames + QUOTA_MESSAGES
        verdicts.append(pace.is_too_far_behind(3, received, read_bytes, read_frames))
    assert verdicts == [False, True]


def test_who_was_read_in_between_begins_anew_and_so_does_another_connection() -> None:
    pace = ReadingPace()
    read = QUOTA_MESSAGES * SHORT_BYTES
    assert not pace.is_too_far_behind(3, FLOOD_BYTES, 0, 0)
    assert not pace.is_too_far_behind(3, FLOOD_BYTES, FLOOD_BYTES, QUOTA_MESSAGES)
    assert not pace.is_too_far_behind(3, 3 * FLOOD_BYTES, FLOOD_BYTES + read, 2 * QUOTA_MESSAGES)
    assert not pace.is_too_far_behind(3, FLOOD_BYTES, 0, 2 * QUOTA_MESSAGES), "it is another one by now"
    assert not pace.is_too_far_behind(4, FLOOD_BYTES, read, 2 * QUOTA_MESSAGES)
