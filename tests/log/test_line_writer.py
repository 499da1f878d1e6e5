"""A log that nobody reads: who writes it goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from distkv.log.line_writer import AT_ONCE_BYTES, MOST_WAITING_CHARACTERS, LineWriter
from tests.threads import no_threads

DEADLINE_S = 20.0


class Read:
    """A pipe that is read when the test says so, and the writer of lines into it."""

    def __init__(self) -> None:
        self._from, to = os.pipe()
        self._out: TextIO = os.fdopen(to, "w", encoding="utf-8")
        self.num_left_out: list[int] = []
        self.was_told = threading.Event()
        self.writer = LineWriter(self._out, self._told)

    def _told(self, num_lines: int) -> None:
        self.num_left_out.append(num_lines)
        self.was_told.set()

    def lines(self, count: int) -> list[str]:
        """As many as are asked for; waits for them."""
        found = b""
        while found.count(b"\n") < count:
            found += os.read(self._from, 2**16)
        return found.decode().splitlines()

    def rest(self) -> list[str]:
        """All that is to come; nothing may be written afterwards."""
        found = bytearray()

        def read_all() -> None:
            while chunk := os.read(self._from, 2**16):
                found.extend(chunk)

        reader = threading.Thread(target=read_all)
        reader.start()
        self.writer.flush(DEADLINE_S)
        self._out.close()
        reader.join(DEADLINE_S)
        return found.decode().splitlines()

    def close(self) -> None:
        """Nobody reads any more."""
        os.close(self._from)
        self.writer.flush(DEADLINE_S)
        self._out.close()


@pytest.fixture
def read() -> Iterator[Read]:
    pipe = Read()
    yield pipe
    pipe.close()


def test_lines_that_nobody_reads_wait_and_come_in_their_order(read: Read) -> None:
    """The process stood still with them, its peers took it for dead, and all that it served failed."""
    written = [f"line {number}" + " " * 1000 for number in range(200)]
    for line in written:
        read.writer.write(line)
    assert read.lines(len(written)) == written
    read.writer.flush(DEADLINE_S)
    read.writer.write("later")
    assert read.lines(1) == ["later"] and not read.num_left_out


def test_where_no_thread_can_be_started_the_next_line_tries_again(read: Read) -> None:
    lines = [f"line {number}" + " " * 2 * AT_ONCE_BYTES for number in range(3)]
    with no_threads():
        for line in lines[:2]:
            read.writer.write(line)
    read.writer.write(lines[2])
    assert read.lines(3) == lines and not read.num_left_out


def test_last_words_are_written_where_no_thread_can_be_started(read: Read) -> None:
    lines = ["a traceback" + " " * 2 * AT_ONCE_BYTES, "and the last word"]
    with no_threads():
        for line in lines:
            read.writer.write(line)
    assert read.rest() == lines


def test_more_than_can_wait_is_left_out_and_counted(read: Read) -> None:
    size = 4 * AT_ONCE_BYTES
    most = MOST_WAITING_CHARACTERS // size
    for number in range(2 * most):
        read.writer.write(f"{number:>{size}}")
    taken = [int(line.strip()) for line in read.rest()]
    assert taken == list(range(len(taken))) and len(taken) >= most
    assert read.was_told.wait(DEADLINE_S)
    assert sum(read.num_left_out) == 2 * most - len(taken) > 0


def test_a_line_that_is_not_taken_whole_holds_nobody(read: Read) -> None:
    line = "x" * 2**18
    read.writer.write(line)
    read.writer.write("the next")
    assert read.lines(2) == [line, "the next"]


def test_the_end_waits_no_longer_than_it_is_told_to(read: Read) -> None:
    for _ in range(200):
        read.writer.write("x" * 1000)
    read.writer.flush(0.01)
    assert read.lines(200)


def test_what_is_taken_always_is_written_at_once(tmp_path) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as out:
        writer = LineWriter(out, lambda _: None)
        writer.write("x" * 2**18)
        assert path.stat().st_size == 2**18 + 1
