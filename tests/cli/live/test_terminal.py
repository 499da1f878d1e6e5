"""Keys of a terminal."""

from __future__ import annotations

import os
import sys

import pytest

from distkv.cli.live.terminal import GONE, keys


def test_a_terminal_that_is_gone_ends_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked again and again, by a whole core."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with keys() as pressed:
            assert pressed(0) == ""
            os.write(ours, b"x")
            assert pressed(20) == "x"
            os.close(ours)
            assert pressed(20) == GONE
