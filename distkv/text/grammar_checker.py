"""Grammars of strangers are compiled in a process of their own, `python -m distkv.text.grammar_checker`, first.

llguidance bounds most of what compiling costs. What it does not (schemas whose `allOf` holds twenty patterns take
minutes and gigabytes) ends this process and nobody else's. What passes here costs as little where it is compiled again.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import struct
import subprocess
import sys
from collections import OrderedDict
from threading import Lock, Timer
from typing import IO

import msgspec

from distkv import threads
from distkv.errors import ConfigError, InvalidParams
from distkv.process_priority import begin_helper
from distkv.structured_output import FIELD, StructuredOutput
from distkv.text.structured_output import check

CPU_S = 2.0
MEMORY_BYTES = 2**30
ANSWER_S = 60.0
"""A process that has not answered by then stands still, or gets no processor time; it is ended."""
REMEMBERED = 64
"""Outputs that passed, at most 64 KiB each: most requests have one of few schemas."""
_FRAME = struct.Struct("!I")


class GrammarChecker:
    """Owns the process, which is started by the first check. Safe to use from several threads; close it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._passed: OrderedDict[StructuredOutput, None] = OrderedDict()
        self._turn = Lock()
        self._is_closed = False

    def has_passed(self, output: StructuredOutput) -> bool:
        """Whether `check` would return at once. Never blocks."""
        try:
            self._passed.move_to_end(output)
        except KeyError:
            return False
        return True

    def check(self, output: StructuredOutput) -> None:
        """As `structured_output.check`, within CPU_S and MEMORY_BYTES: raises InvalidParams, or ConfigError where
        llguidance cannot be used.

        Blocks, for seconds at worst while others have their turn: to be called in a thread, which it does not hold the
        interpreter of.
        """
        with self._turn:
            if not self.has_passed(output):
                self._ask(output)
                self._passed[output] = None
                if len(self._passed) > REMEMBERED:
                    self._passed.popitem(last=False)

    def close(self) -> None:
        """End the process, if there is one; what it checks at this moment fails, and so does what comes. Safe to call
        twice."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._turn:
            self._drop()

    def _ask(self, output: StructuredOutput) -> None:
        self._check_open()
        if self._process is not None and self._process.poll() is not None:
            # When memory is short it is the first to go, also while it waits: no fault of this output.
            self._drop()
        process = self._process
        is_new = process is None
        if process is None:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if self._is_closed:  # meanwhile, by who found no process to end
                process.kill()
        assert process.stdin is not None and process.stdout is not None
        answer: bytes | None = None
        watchdog = Timer(ANSWER_S, process.kill)
        watchdog.daemon = True
        threads.start(watchdog)
        try:
            _write(process.stdin, msgspec.msgpack.encode(output))
            answer = _read(process.stdout)
        except BrokenPipeError:
            pass
        finally:
            watchdog.cancel()
        if answer is None:
            code = self._drop()
            self._check_open()
            if code != -signal.SIGKILL or is_new:
                raise _ended(output, code)
            # It may have been ending already, one thread after the other, when it was asked.
            self._ask(output)
            return
        if answer:
            raise InvalidParams(FIELD, answer.decode(), output.text)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError(FIELD, "nothing is checked any more: what checks it was closed")

    def _drop(self) -> int:
        """The process has ended, or does so now; returns its exit code, 0 if there is none."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        return process.wait()


def _ended(output: StructuredOutput, code: int) -> InvalidParams | ConfigError:
    if -code in (signal.SIGPROF, signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV):
        most = f"{CPU_S:g} s and {MEMORY_BYTES >> 20} MiB"
        return InvalidParams(FIELD, f"a {output.kind} that takes no more than {most} to be compiled", output.text)
    return ConfigError(FIELD, f"the process that checks it ended with code {code}", "is llguidance installed?")


def _write(stream: IO[bytes], frame: bytes) -> None:
    stream.write(_FRAME.pack(len(frame)) + frame)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next frame; None when there is no more."""
    head = stream.read(_FRAME.size)
    return stream.read(_FRAME.unpack(head)[0]) if len(head) == _FRAME.size else None


def main() -> None:
    """Answer what is to be checked with what is wrong with it, until standard input ends."""
    begin_helper()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while (frame := _read(sys.stdin.buffer)) is not None:
        output = msgspec.msgpack.decode(frame, type=StructuredOutput)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            check(output)
            answer = ""
        except InvalidParams as error:
            answer = error.expected
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(sys.stdout.buffer, answer.encode())


if __name__ == "__main__":
    main()
