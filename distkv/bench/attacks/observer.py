"""A process that observes a gateway, and has nothing to do with attacks on it.

    python -m distkv.bench.attacks.observer HOST:PORT

It first says who it is, a line of `Priority` in JSON; then each line that it reads ends a window, and is answered with
what was seen in it, a line of `Seen`. Times are of its own clock.
"""

from __future__ import annotations

import asyncio
import os
import sys
from urllib.parse import urlsplit

import click
import msgspec
import uvloop

from distkv.actors.task_scope import task_scope
from distkv.bench.attacks.observation import Observation, Seen
from distkv.bench.harness.line_process import LineProcess, say


class Priority(msgspec.Struct, frozen=True):
    """Of the process. problem: why it is not that of real time; empty if it is."""

    problem: str = ""


class Observer(LineProcess):
    """The process that observes the gateway at `url`. It is gone when the context ends."""

    def __init__(self, url: str) -> None:
        super().__init__("distkv.bench.attacks.observer", urlsplit(url).netloc)
        self.priority = self.answer(Priority)

    def cut(self) -> Seen:
        """What was seen since the last cut, or since the beginning."""
        self.tell(None)
        return self.answer(Seen)


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
            say(await observation.cut())


@click.command()
@click.argument("address")
def main(address: str) -> None:
    """Observe the gateway at ADDRESS; see the module."""
    say(take_real_time())
    host, _, port = address.rpartition(":")
    uvloop.run(observe(host, int(port)))


if __name__ == "__main__":
    main()
