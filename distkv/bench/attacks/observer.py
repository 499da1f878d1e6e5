"""A process that observes a gateway, and has nothing to do with attacks on it.

    python -m distkv.bench.attacks.observer HOST:PORT

It first says who it is, a line of `Priority` in JSON; then each line that it reads ends a window, and is answered with
what was seen in it, a line of `Seen`. Times are of its own clock.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import click
import msgspec
import uvloop

from distkv.actors.task_scope import task_scope
from distkv.bench.attacks.observation import Observation, Seen


class Priority(msgspec.Struct, frozen=True):
    """Of the process. problem: why it is not that of real time; empty if it is."""

    problem: str = ""


class Observer:
    """The process that observes the gateway at `url`. It is gone when the context ends."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url).netloc
        command = [sys.executable, "-P", "-m", "distkv.bench.attacks.observer", address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._cuts, self._seen = self._process.stdin, self._process.stdout
        self.priority = msgspec.json.decode(self._seen.readline(), type=Priority)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._cuts.close()
        self._seen.close()

    def cut(self) -> Seen:
        """What was seen since the last cut, or since the beginning."""
        self._cuts.write(b"\n")
        self._cuts.flush()
        return msgspec.json.decode(self._seen.readline(), type=Seen)


def take_real_time() -> Priority:
    """From now on this process goes before all ordinary ones, where that is allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        return Priority(error.strerror or str(error))
    return Priority()


async def observe(host: str, port: int) -> None:
    """Until standard input ends."""
    cuts = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(cuts), sys.stdin.buffer)
    async with task_scope() as tasks:
        observation = Observation(host, port, tasks)
        while await cuts.readline():
            _say(await observation.cut())


def _say(line: Priority | Seen) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


@click.command()
@click.argument("address")
def main(address: str) -> None:
    """Observe the gateway at ADDRESS; see the module."""
    _say(take_real_time())
    host, _, port = address.rpartition(":")
    uvloop.run(observe(host, int(port)))


if __name__ == "__main__":
    main()
