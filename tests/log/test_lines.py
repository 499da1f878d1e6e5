"""Log lines: structured, attributed, and never carrying what users wrote or keys."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from distkv.errors import ConfigError
from distkv.log import lines as log
from distkv.log.line_limit import BURST_LINES
from distkv.types import SamplingParams
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.to_rmanager import Submit


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_says_who_and_when(out: io.StringIO) -> None:
    log.configure("worker", "i-1", stream=out)
    structlog.get_logger().info("step done", step_id=3)
    (line,) = lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "step done", "level": "info", "process": "worker", "instance_id": "i-1", "step_id": 3}


def test_about_names_request_and_cause(out: io.StringIO) -> None:
    log.configure("rmanager", stream=out)
    with log.about(request_id="r-1", cause="c-7"):
        structlog.get_logger().info("inside")
    structlog.get_logger().info("outside")
    inside, outside = lines(out)
    assert (inside["request_id"], inside["cause"]) == ("r-1", "c-7")
    assert "request_id" not in outside and "instance_id" not in outside


@pytest.mark.parametrize("as_json", [True, False])
def test_what_users_wrote_never_appears(out: io.StringIO, as_json: bool) -> None:
    log.configure("rmanager", json=as_json, stream=out)
    logger = structlog.get_logger().bind(prompt="SECRET")
    submit = Submit(request_id="r-9", prompt="SECRET", params=SamplingParams(stop="SECRET"))
    logger.info(
        "one",
        text="SECRET",
        token_ids=["SECRET"],
        api_key="SECRET",
        key="SECRET",
        Authorization="SECRET",
        nested={"a": [{"prompt": "SECRET", "kept": 1}]},
        message=Envelope(id="x", sender="c", body=submit),
        num_tokens=5,
    )
    try:
        prompt = "SECRET"
        raise ValueError(f"of length {len(prompt)}")
    except ValueError:
        logger.exception("two")
    assert "SECRET" not in out.getvalue().replace('prompt = "SECRET"', "")
    assert "r-9" in out.getvalue() and "num_tokens" in out.getvalue() and "of length 6" in out.getvalue()


def test_levels(out: io.StringIO) -> None:
    log.configure("worker", level="warning", stream=out)
    logger = structlog.get_logger()
    logger.info("no")
    logger.warning("yes")
    assert [line["event"] for line in lines(out)] == ["yes"]
    with pytest.raises(ConfigError, match="log_level: expected one of debug, info, warning, error, got 'loud'"):
        log.configure("worker", level="loud")


def test_a_terminal_gets_readable_lines() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    log.configure("up", stream=terminal)
    structlog.get_logger().info("hello", n=1)
    assert "hello" in terminal.getvalue() and not terminal.getvalue().startswith("{")


def test_libraries_log_the_same_way(out: io.StringIO) -> None:
    log.configure("worker", stream=out)
    logging.getLogger("asyncio").error("task failed: %s", "x")
    logging.getLogger("other").info("chatter")
    (line,) = lines(out)
    assert (line["event"], line["level"], line["logger"]) == ("task failed: x", "error", "asyncio")


def test_odd_values_do_not_break_the_line(out: io.StringIO) -> None:
    log.configure("worker", stream=out)
    structlog.get_logger().info("odd", error=ValueError("v"), thing=object(), data=b"\xff", many={3}, pair=(1, 2))
    (line,) = lines(out)
    assert line["error"] == "ValueError('v')"
    assert line["pair"] == [1, 2]


def test_lines_of_many_threads_stay_whole(out: io.StringIO) -> None:
    log.configure("worker", stream=out)

    def chat() -> None:
        for i in range(200):
            structlog.get_logger().info("x" * 100, i=i)

    threads = [threading.Thread(target=chat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(out)) == 800


def test_a_broken_output_ends_nothing() -> None:
    tried: list[str] = []

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            tried.append(text)
            raise BrokenPipeError

    log.configure("worker", stream=Broken())
    for event in ("lost", "lost too"):
        structlog.get_logger().info(event)
    assert "".join(tried).count('"lost') == 2


def test_a_process_whose_log_nobody_reads_goes_on_and_ends() -> None:
    work = (
        "import structlog; from distkv.log.lines import configure; configure('worker')\n"
        "for number in range(5000): structlog.get_logger().info('accepted', number=number)\n"
    )
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE) as process:
        assert process.wait(30.0) == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_names_from_elsewhere_are_printable(out: io.StringIO, as_json: bool) -> None:
    log.configure("gmanager", json=as_json, stream=out)
    hostile = "i\x1b[2J\x9b\u202e\r"
    structlog.get_logger().info("joined " + hostile, instance=hostile, instances=[hostile], blocks={hostile: 1})
    try:
        raise ValueError(hostile)
    except ValueError:
        structlog.get_logger().error("failed", exc_info=True)
    text = out.getvalue()
    assert "u202e" in text and text.replace("\n", "").isprintable()
    assert ("Traceback" in text) and (as_json or "Traceback (most recent call last):\n" in text)


def test_lines_of_a_library_that_others_can_cause_are_bounded(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway wrote one for each connection that sent nonsense."""
    now_s = 100.0
    monkeypatch.setattr(log, "time", SimpleNamespace(monotonic=lambda: now_s))
    log.configure("gateway", level="info", json=True, stream=out)
    library = logging.getLogger("uvicorn.error")
    for _ in range(2):
        for _ in range(1000):
            library.warning("Invalid HTTP request received.")
        library.error("something else")
        now_s += 1.0
    events = [line["event"] for line in lines(out)]
    assert events.count("Invalid HTTP request received.") == BURST_LINES + 1
    assert events.count("something else") == 2
    assert [line["left_out"] for line in lines(out) if "left_out" in line] == [1000 - BURST_LINES]
