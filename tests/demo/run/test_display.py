"""What the terminal gets."""

from __future__ import annotations

from distkv.demo.run.display import printable


def test_text_cannot_move_the_cursor():
    assert printable("a\x1b[2Jé\tb\r\n") == "a·[2Jé·b·\n"
