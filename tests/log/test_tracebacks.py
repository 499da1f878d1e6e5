from __future__ import annotations

import io

import pytest
import structlog

from distkv.log import lines as log
from distkv.log.tracebacks import MOST_FRAMES, traceback_text


def fall(depth: int) -> None:
    if depth:
        climb(depth - 1)
    raise ValueError("at the bottom")


def climb(depth: int) -> None:
    fall(depth)


def test_the_innermost_frames_are_told_however_many_there_are() -> None:
    for depth in (1, 400):
        with pytest.raises(ValueError, match="at the bottom") as caught:
            fall(depth)
        text = traceback_text(caught.value)
        assert text.startswith("Traceback (most recent call last):\n")
        assert text.endswith('    raise ValueError("at the bottom")\nValueError: at the bottom')
        assert text.count('File "') == min(MOST_FRAMES, 2 + 2 * depth)


def test_errors_that_caused_it_are_told_too() -> None:
    with pytest.raises(KeyError) as caught:
        try:
            fall(0)
        except ValueError as error:
            raise KeyError("later") from error
    text = traceback_text(caught.value)
    assert text.index("ValueError: at the bottom") < text.index("direct cause") < text.index("KeyError: 'later'")


@pytest.mark.parametrize("as_json", [True, False])
def test_log_lines_have_them(as_json: bool) -> None:
    """A request that was nested deep made 170 kB of one line."""
    out = io.StringIO()
    log.configure("gateway", json=as_json, stream=out)
    try:
        fall(400)
    except ValueError:
        structlog.get_logger().error("failed", exc_info=True)
    assert out.getvalue().count("File ") == MOST_FRAMES
