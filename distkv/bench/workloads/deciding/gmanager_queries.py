"""Queries to a gManager from a process that does nothing else, so that no load of its own is in what they take.

    python -m distkv.bench.workloads.deciding.gmanager_queries ADDRESS

reads one `QueryRun` after the other, each a line of JSON, and answers each with a line of `QueryTimes`.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from contextlib import suppress

import click
import msgspec
import zmq

from distkv.bench.harness.line_process import LineProcess, say
from distkv.bench.workloads.deciding.heartbeat_frames import BLOCKS, instance_name
from distkv.errors import DistKVError
from distkv.wire.codec import encode_envelope
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate

ANSWER_S = 5.0
BORROW, LOCATE = "BorrowQuery", "Locate"


class NoAnswer(DistKVError):
    """The gManager does not answer."""


class QueryRun(msgspec.Struct, frozen=True):
    """Queries of both kinds by turns for so long, about a cluster of so many instances."""

    num_instances: int
    seconds: float
    per_s: float


class QueryTimes(msgspec.Struct, frozen=True):
    """took_s: by kind, the seconds of each query."""

    took_s: dict[str, list[float]]


class QueryProcess(LineProcess):
    """The process that asks the gManager at `address`; one run at a time."""

    def __init__(self, address: str, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        super().__init__("distkv.bench.workloads.deciding.gmanager_queries", address, "--answer-s", f"{answer_s}")

    def result(self) -> QueryTimes | None:
        """What the queries that it was told of took; None while they go on. Raises NoAnswer if the process has given
        up."""
        if not self.has_answered():
            return None
        try:
            return self.answer(QueryTimes)
        except EOFError as error:
            raise NoAnswer(f"a query was not answered within {self._answer_s:g} s") from error


def ask(socket: zmq.Socket[bytes], run: QueryRun) -> QueryTimes:
    """Query after query on a connected socket that has its time-out. Raises zmq.Again when one is not answered."""
    draw = random.Random(0)
    took: dict[str, list[float]] = {BORROW: [], LOCATE: []}
    due_s = time.monotonic()
    until_s = due_s + run.seconds
    while due_s < until_s:
        time.sleep(max(0.0, due_s - time.monotonic()))
        for kind, body in (
            (
                BORROW,
                BorrowQuery(
                    instance_id=instance_name(draw.randrange(run.num_instances)),
                    borrow_id="b",
                    num_blocks=draw.randrange(1, 64),
                ),
            ),
            (LOCATE, Locate(request_id="r", num_tokens=draw.randrange(1, 16 * BLOCKS))),
        ):
            frame = encode_envelope(Envelope(id="q", sender="queries", body=body))
            started_s = time.perf_counter()
            socket.send(frame)
            socket.recv()
            took[kind].append(time.perf_counter() - started_s)
        due_s = max(due_s + 2.0 / run.per_s, time.monotonic())
    return QueryTimes(took)


@click.command()
@click.argument("address")
@click.option("--answer-s", type=float, default=ANSWER_S)
def main(address: str, answer_s: float) -> None:
    """Ask the gManager at ADDRESS; see the module."""
    with suppress(PermissionError):
        # Waiting for the core that the load comes from is not waiting for the gManager.
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.IDENTITY, b"\x01" + secrets.token_bytes(16))
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVTIMEO, round(1000 * answer_s))
        socket.connect(address)
        for line in sys.stdin.buffer:
            try:
                times = ask(socket, msgspec.json.decode(line, type=QueryRun))
            except zmq.Again:
                sys.exit(1)
            say(times)


if __name__ == "__main__":
    main()
