"""`distkv bench transfer`: 1,024 blocks from another process by every transport, beside messages and beside memcpy.

Blocks lie scattered, in runs of 16, or all in a row at both ends; a transport reads a list, or block by block.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import click

from distkv.bench.harness.alternate import Measure, Samples, Turns, median_interval, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.report import Goal, at_least, judged
from distkv.bench.harness.timing.processes import cpu_seconds
from distkv.bench.transfers.layouts import KINDS, Kind, Layout, fill
from distkv.bench.transfers.owner import Owner, Served
from distkv.bench.transfers.placement import held, placements
from distkv.bench.transfers.ways import (
    GATHERED,
    MEMCPY,
    MESSAGES,
    UCX_EXCHANGES,
    UCX_MESSAGES,
    VECTORED,
    VERIFIED,
    ZMQ_MESSAGES,
    Way,
    Ways,
)
from distkv.wire.links import PoolMemory

BLOCKS, QUICK_BLOCKS = 1024, 64
SIZES_KB = (4, 32, 128)
QUERY_BYTES = 16 * 1024
BESIDE_UCX = "4 KB scattered, in pairs with UCX, GB/s"
QUERIES = "16 KB there and back, µs"
IDLE_S = 3.0
CONTENDERS = (VECTORED, GATHERED, MESSAGES, ZMQ_MESSAGES, *UCX_EXCHANGES)
MOST_VERIFYING = 1.03
PAIRS = 6
"""For each round, of what differs by less than one read does from the next, or by nearly as much as it should."""
QUERY_GOALS_US = {"shm": 45.0, "tcp": 60.0}
VERIFYING = ("shm", "tcp")
HELP = """1,024 blocks of 4, 32 and 128 KB read from another process: each tensor transport, with a list of blocks and
block by block, beside sockets, a message per block by TCP, ZeroMQ and UCX, gathering and scattering, and a copy within
memory; by turns, medians and spread. Then queries there and back, and an idle owner's processor time.

With --namespaces the owner is in a network namespace of its own, behind a pair of virtual devices; that takes root.

\b
Examples:
  distkv bench transfer --json transfer.json --plot transfer.png
  distkv bench transfer --namespaces
  distkv bench transfer --quick
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the owner is. through: the command that runs it there."""

    host: str
    through: tuple[str, ...] = ()


def measure(say: Say, *, quick: bool, rounds: int, namespaces: bool) -> Measured:
    """Run it."""
    blocks = QUICK_BLOCKS if quick else BLOCKS
    turns = Turns()
    not_linked: dict[str, str] = {}
    idle_percent = 0.0
    with _place(namespaces) as place:
        for size_kb in SIZES_KB:
            slot_bytes = size_kb * 1024
            served = Served(place.host, slot_bytes, 2 * blocks)
            own, away = PoolMemory(slot_bytes, 2 * blocks), PoolMemory(slot_bytes, 2 * blocks)
            fill(away)
            with own, away, Owner(served, place.through) as owner, Ways(owner.reached, own, away) as ways:
                not_linked |= ways.not_linked
                if size_kb == SIZES_KB[0]:
                    say("queries")
                    _queries(turns, ways, owner.pid, 20 if quick else 500, rounds)
                    idle_percent = _idle_percent(owner.pid)
                for kind in KINDS:
                    say(f"{size_kb} KB {kind}")
                    _transfers(turns, ways, Layout.of(kind, blocks), _case(size_kb, kind), rounds)
                say(f"{size_kb} KB, in pairs")
                for transport in VERIFYING:
                    _pairs(turns, ways, blocks, _verifying(size_kb), (transport, transport + VERIFIED), rounds)
                if size_kb == SIZES_KB[0]:
                    _pairs(turns, ways, blocks, BESIDE_UCX, ("shm", UCX_MESSAGES), rounds)
    facts = {
        "blocks": blocks,
        "owner": "a network namespace of its own" if namespaces else "another process of the host",
        "not linked": not_linked,
        "contenders": {
            VECTORED: "sendmsg and recvmsg_into of up to 1,024 blocks at once, TCP_NODELAY, Python's socket",
            GATHERED: "numpy.take into one buffer, sendall, recv_into, fancy indexing",
            MESSAGES: "8 bytes of length and sendall for each block; one request for all",
            ZMQ_MESSAGES: "ROUTER to DEALER, copy=False, no high-water mark; one request for all",
        }
        | {name: str(exchange) for name, exchange in UCX_EXCHANGES.items()},
    }
    return Measured(turns.samples, _goals(turns.samples, idle_percent, namespaces), facts)


def _case(size_kb: int, kind: Kind) -> str:
    return f"{size_kb} KB {kind}, GB/s"


def _verifying(size_kb: int) -> str:
    return f"{size_kb} KB scattered, in pairs, GB/s"


def _transfers(turns: Turns, ways: Ways, layout: Layout, case: str, rounds: int) -> None:
    told = layout.told(ways.checksums)
    for name, way in ways.all().items():
        layout.clear(ways.own)
        way(told())
        if not layout.is_here(ways.own):
            raise RuntimeError(f"{name} did not bring the right blocks")
    variants = _timed(ways, layout, case)
    for index in range(-1, rounds):
        turns.take(variants, index)


def _pairs(turns: Turns, ways: Ways, blocks: int, case: str, names: tuple[str, str], rounds: int) -> None:
    """Of scattered blocks, where both are linked."""
    scattered = _timed(ways, Layout.of("scattered", blocks), case)
    if not scattered.keys() >= set(names):
        return
    for index in range(-1, rounds * PAIRS):
        turns.take({name: scattered[name] for name in names}, index)


def _timed(ways: Ways, layout: Layout, case: str) -> Mapping[str, Measure]:
    num_bytes = len(layout.source) * ways.own.slot_bytes
    told = layout.told(ways.checksums)

    def timed(way: Way) -> Mapping[str, float]:
        fresh = told()
        started = time.perf_counter()
        way(fresh)
        return {case: num_bytes / 1e9 / (time.perf_counter() - started)}

    return {name: partial(timed, way) for name, way in ways.all().items()}


def _queries(turns: Turns, ways: Ways, owner_pid: int, times: int, rounds: int) -> None:
    def timed(transport: str, where: str) -> Mapping[str, float]:
        with held(owner_pid, where):
            return {QUERIES: 1e6 * ways.round_trip_s(transport, QUERY_BYTES, times)}

    variants = {
        transport + (where and f", {where}"): partial(timed, transport, where)
        for where in placements()
        for transport in QUERY_GOALS_US
    }
    for index in range(-1, rounds):
        turns.take(variants, index)


def _idle_percent(pid: int) -> float:
    """Of a core, that a process takes while nobody asks it for anything; links are open."""
    before = cpu_seconds(pid)
    time.sleep(IDLE_S)
    return 100 * (cpu_seconds(pid) - before) / IDLE_S


def _goals(samples: Samples, idle_percent: float, namespaces: bool) -> tuple[Goal, ...]:
    goals = []
    scattered = samples[_case(32, "scattered")]
    goals.append(at_least("32 KB scattered: shm beside memcpy", paired_ratio(scattered["shm"], scattered[MEMCPY]), 0.8))
    for size_kb in SIZES_KB:
        variants = samples[_case(size_kb, "scattered")]
        best = max(variants.keys() & CONTENDERS, key=lambda name: statistics.median(variants[name]))
        ratio = paired_ratio(variants["shm"], variants[best])
        goals.append(at_least(f"{size_kb} KB scattered: shm beside the best contender, {best}", ratio, 1.0))
    for size_kb in SIZES_KB:
        variants = samples.get(_verifying(size_kb), {})
        for transport in VERIFYING:
            if transport + VERIFIED in variants:
                ratio = paired_ratio(variants[transport], variants[transport + VERIFIED])
                name = f"{size_kb} KB scattered: time of a verified read by {transport}, beside one that is not"
                goals.append(judged(name, ratio, most=MOST_VERIFYING))
    name = "4 KB scattered: shm beside messages over UCX, defaults, one at a time"
    if beside_ucx := samples.get(BESIDE_UCX):
        goals.append(at_least(name, paired_ratio(beside_ucx["shm"], beside_ucx[UCX_MESSAGES]), 5.5))
    else:
        goals.append(Goal(name, "at least 5.5", "", None, "UCX is not installed, or joins no two processes here"))
    goal = "scattered: tcp beside vectored sockets, the least of all sizes"
    if namespaces:
        cases = [samples[_case(size_kb, "scattered")] for size_kb in SIZES_KB]
        least = min((paired_ratio(case["tcp"], case[VECTORED]) for case in cases), key=lambda ratio: ratio.value)
        goals.append(judged(goal, least, least=0.85))
    else:
        goals.append(Goal(goal, "at least 0.85", "", None, "asked between network namespaces: --namespaces"))
    for variant, values in samples[QUERIES].items():
        most_us = QUERY_GOALS_US[variant.partition(",")[0]]
        goals.append(judged(f"16 KB there and back, µs, {variant}", median_interval(values), most=most_us))
    idle = f"{idle_percent:.2f} %"
    goals.append(Goal("an idle owner's share of a core", "at most 1 %", idle, idle_percent <= 1.0))
    return tuple(goals)


@contextlib.contextmanager
def _place(namespaces: bool) -> Iterator[Place]:
    if not namespaces:
        yield Place("127.0.0.1")
        return
    if os.geteuid() != 0:
        raise click.UsageError("--namespaces takes root")
    name = f"distkv-{secrets.token_hex(3)}"
    near, far = f"n{name[-6:]}", f"f{name[-6:]}"
    commands = (
        f"netns add {name}", f"link add {near} type veth peer name {far}", f"link set {far} netns {name}",
        f"addr add 10.213.79.1/24 dev {near}", f"link set {near} up", f"-n {name} addr add 10.213.79.2/24 dev {far}",
        f"-n {name} link set {far} up", f"-n {name} link set lo up",
    )  # fmt: skip
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        yield Place("10.213.79.2", ("ip", "netns", "exec", name))
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


main = benchmark(
    "transfer",
    measure,
    HELP,
    [
        click.Option(["--namespaces"], is_flag=True, help="The owner in a network namespace of its own."),
    ],
    unit_of=unit_of_name,
    packages=("pyzmq", "numpy", "nixl-cu12", "libucx-cu12"),
    rounds=(9, 2),
)
