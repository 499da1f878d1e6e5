"""What is remembered of those who send what does not decode."""

from __future__ import annotations

from distkv.wire.rejections import MAX_BAD_IN_A_ROW, MAX_ROUTES, Rejections


def test_a_good_message_makes_up_for_the_bad_ones_before() -> None:
    rejections = Rejections()
    for _ in range(3):
        for _ in range(MAX_BAD_IN_A_ROW - 1):
            rejections.bad(b"a")
        assert not rejections.is_shut_out(b"a")
        rejections.good(b"a")
    for _ in range(MAX_BAD_IN_A_ROW):
        rejections.bad(b"a")
    assert rejections.is_shut_out(b"a") and not rejections.is_shut_out(b"b")


def test_it_is_bounded() -> None:
    rejections = Rejections()
    for i in range(MAX_ROUTES + 10):
        rejections.bad(b"%d" % i)
    assert len(rejections) == MAX_ROUTES
