"""One of the processes that a request's attention is split over: its shares, its links, and its part of every way.

`python -m distkv.bench.split_attention.process` says where it is reached; then it follows its standard input: a line
that says where all are reached, and one for each step. At the end of it, it ends.
"""

from __future__ import annotations

import os
import sys

import msgspec

from distkv.bench.harness.line_process import say
from distkv.bench.split_attention.dist_attention import Debtor
from distkv.bench.split_attention.door import Door, Reached
from distkv.bench.split_attention.network import Place, within
from distkv.bench.split_attention.ring import Ring
from distkv.bench.split_attention.split import DTYPE, Share, Split, memories
from distkv.bench.split_attention.tensor_parallel import HeadParallel
from distkv.bench.split_attention.ways import DIST, HEADS, HOST, RING, SHAPED, Link, Name, Way
from distkv.bench.workloads.computing.creditor import SPAN
from distkv.engine.attention.bodies import body_of
from distkv.engine.attention.serving import AttendServer
from distkv.engine.attention.spans import SpanRegistry
from distkv.engine.device.cpu import CpuDevice

ReachedBy = dict[Link, Reached]
"""Of one process."""


class Told(msgspec.Struct, frozen=True):
    """What a process is started with. core: that it is on, if it is on one. place: where its shaped link is, if there
    is one."""

    split: Split
    process: int
    core: int | None
    place: Place | None


class Turn(msgspec.Struct, frozen=True):
    """A step that is wanted. with_outputs: they are to be sent."""

    way: Name
    link: Link
    layers: int
    with_outputs: bool = False


class Took(msgspec.Struct, frozen=True):
    """See Way. outputs: float32 [layers, rows of this process, heads, dim], if they were wanted."""

    seconds: float
    sent_bytes: int
    outputs: bytes


def main(told: Told) -> None:
    """The process itself."""
    sys.setswitchinterval(0.0005)  # as a worker has it
    split, process = told.split, told.process
    device = CpuDevice()
    device.backend.use_threads(1, () if told.core is None else (told.core,))
    parts = (split.blocks_of(process), range(split.heads)), (range(split.blocks), split.heads_of(process))
    by_sequence, by_heads = (
        Share(split, *part, split.rows, memory) for part, memory in zip(parts, memories(split, parts), strict=True)
    )
    registry = SpanRegistry()
    registry.grant(SPAN, tuple(range(len(split.blocks_of(process)))))
    server = AttendServer(by_sequence.pool, registry, by_sequence.config, DTYPE, device)
    places: dict[Link, Place | None] = {HOST: None} if told.place is None else {HOST: None, SHAPED: told.place}
    doors = {link: Door(process, link, place, server, by_sequence.memory) for link, place in places.items()}
    say({link: door.reached for link, door in doors.items()})
    everyone = msgspec.json.decode(sys.stdin.readline(), type=list[ReachedBy])
    ways: dict[tuple[Name, Link], Way] = {}
    for link, door in doors.items():
        reached = [one[link] for one in everyone]
        ways[HEADS, link] = HeadParallel(split, process, by_heads, device.backend, door.sockets(reached), link)
        ways[RING, link] = Ring(split, process, by_sequence, device.backend, door.links(reached))
        if process == 0:
            creditors = [door.member(number, one) for number, one in enumerate(reached) if number]
            with within(places[link]):
                ways[DIST, link] = Debtor(split, by_sequence, device.backend, creditors, link)
    say({})
    for line in sys.stdin:
        turn = msgspec.json.decode(line, type=Turn)
        way = ways[turn.way, turn.link]
        seconds = way.step(turn.layers)
        outputs = bytes(body_of(way.outputs)) if turn.with_outputs else b""
        say(Took(seconds, way.sent_bytes, outputs))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Told))
    # Its threads serve on.
    os._exit(0)
