"""A process of a benchmark that speaks lines of JSON: what it reads on standard input, and answers on standard output.

It ends with its standard input, and so with the benchmark, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec

END_S = 2.0
T = TypeVar("T")


class LineProcess:
    """`python -m MODULE ARGUMENTS...`, seen from outside; gone when the context ends. through: a command that runs it.

    Who interrupts the benchmark interrupts the benchmark alone.
    """

    def __init__(self, module: str, *arguments: str, through: Sequence[str] = ()) -> None:
        self._module = module
        command = [*through, sys.executable, "-P", "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def tell(self, message: object) -> None:
        """A line to it. Raises BrokenPipeError if it has ended."""
        self._input.write(msgspec.json.encode(message) + b"\n")
        self._input.flush()

    def has_answered(self) -> bool:
        """Whether `answer` returns or raises without waiting; while nothing is left of an earlier answer."""
        return bool(select.select([self._output], [], [], 0)[0])

    def answer(self, kind: type[T]) -> T:
        """Its next line, which is waited for. Raises EOFError if it ends instead."""
        if not (line := self._output.readline()):
            raise EOFError(f"{self._module} ended with code {self._process.wait()}")
        return msgspec.json.decode(line, type=kind)

    def close(self) -> None:
        """End it, by force if it goes on for END_S without standard input. May be called again."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def say(message: object) -> None:
    """The process's own side: a line on its standard output. It ends the process where nobody reads that any more."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        with Path(os.devnull).open("wb") as nowhere:  # what is left in the buffer is written at the end
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise SystemExit(0) from None
