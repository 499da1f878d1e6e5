"""A trace of one process: every event that its state machine handled, when, and the commands that came of it; one JSON
object per line, complete enough to be decided once more (`distkv.sim.replay`), and nothing of what users wrote and got.

A thread writes, so that a slow disk holds no loop. A trace that is not written as fast as things happen, or that is
very long, ends; the process goes on.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from random import Random, SystemRandom
from typing import Self

import msgspec
import structlog

from distkv import __version__
from distkv.config import GManagerConfig
from distkv.control import commands as c
from distkv.control.recording import records
from distkv.control.recording.masking import Masking, masked_settings
from distkv.control.rmanager.state import RManagerSettings
from distkv.errors import ConfigError

MOST_BYTES = 8 * 2**30
"""Of what one process adds to its file."""
MOST_UNWRITTEN_BYTES = 64 * 2**20
CLOSE_S = 5.0
"""For the rest of it to be written when the process ends."""
_NO_COMMANDS = msgspec.Raw(b"null")
_ROUTES_KNOWN = 2**16


class Trace:
    """A trace without a file does nothing. name: of the process. entropy: what its state machine is to draw from."""

    def __init__(self, path: str | None, name: str) -> None:
        """Raises ConfigError when the file cannot be opened."""
        self._name = name
        self._seed = secrets.randbits(64)
        self.entropy: Random = SystemRandom() if path is None else Random(self._seed)
        self._file: _TraceFile | None = None if path is None else _TraceFile(Path(path))
        self._masking: Masking | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def rmanager_begins(self, settings: RManagerSettings) -> None:
        """An rManager with these settings, and `entropy`."""
        if self._file is not None:
            self._masking = Masking(settings.vocab_size, _hidden_routes())
            self._write(records.RManagerBegan(masked_settings(settings), self._seed, __version__))

    def gmanager_begins(self, config: GManagerConfig, incarnation: int) -> None:
        """A gManager with these settings."""
        if self._file is not None:
            self._masking = Masking(0, _hidden_routes())
            self._write(records.GManagerBegan(config.membership, config.advice, incarnation, __version__))

    def decided(
        self, event: records.Happened, now: float, commands: Sequence[c.Command | c.GManagerCommand] | None
    ) -> None:
        """What came of an event; None if it raised."""
        if self._masking is None:
            return
        done = _NO_COMMANDS
        if commands is not None:
            done = records.encoded_commands(self._masking.commands(commands))
        self._write(records.Decided(now, self._name, self._masking.event(event, commands), done))

    def _write(self, record: records.Record) -> None:
        assert self._file is not None
        if not self._file.put(records.encoded(record) + b"\n"):
            self._masking = None


def _hidden_routes() -> Callable[[bytes], bytes]:
    """Names of routes that lead nowhere."""
    key = secrets.token_bytes(16)

    @lru_cache(_ROUTES_KNOWN)
    def hidden(route: bytes) -> bytes:
        return hashlib.blake2b(route, digest_size=9, key=key).digest()

    return hidden


class _TraceFile:
    """Takes lines on the event loop's thread and writes them on its own."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError("trace_file", f"cannot write {path}: {error.strerror or error}") from None
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._put_bytes = self._written_bytes = 0
        self._is_over = False
        if self._file.tell():
            self.put(b"\n")  # the process before may have died within a line
        self._thread = threading.Thread(target=self._write_all, name="trace", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> bool:
        """Whether more may come."""
        if self._is_over:
            return False
        self._put_bytes += len(line)
        if self._put_bytes - self._written_bytes > MOST_UNWRITTEN_BYTES:
            self._end("the file is slower than what happens")
        elif self._put_bytes > MOST_BYTES:
            self._end(f"{MOST_BYTES} bytes were written")
        else:
            self._lines.put(line)
        return not self._is_over

    def close(self) -> None:
        """Write the rest, if the file takes it soon."""
        self._lines.put(None)
        self._thread.join(CLOSE_S)

    def _end(self, problem: str) -> None:
        self._is_over = True
        structlog.get_logger().error("the trace ends", file=self._file.name, problem=problem)

    def _write_all(self) -> None:
        with self._file:
            while (line := self._lines.get()) is not None:
                try:
                    written = 0
                    while written < len(line):
                        written += self._file.write(line[written:]) or 0
                except OSError as error:
                    self._end(error.strerror or str(error))
                    return
                self._written_bytes += len(line)
