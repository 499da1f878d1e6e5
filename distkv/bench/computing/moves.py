"""`distkv bench moves`: decode throughput of two instances while rBlocks of the one go to the other (001 Fig. 12a).

Worker processes as instances have them, one core each, that decode full batches all the time. Nothing that is moved
changes what they compute, so that what is lost is what moving costs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.harness.alternate import alternate
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.timing.processes import thread_seconds
from distkv.bench.move_cells.goals import (
    ALONE,
    BURST,
    ROLES,
    beside_case,
    goals_of,
    messages_case,
    rate_case,
    variant_of,
)
from distkv.bench.move_cells.instance import Instance, Load
from distkv.bench.move_cells.moving import Moving
from distkv.bench.workloads.computing.decode_steps import BLOCK_TOKENS
from distkv.control.schedule.making_room import LEAST_MOVE_BLOCKS
from distkv.wire.messages.to_rmanager import MAX_READY_BLOCKS

SAMPLE_S, SETTLE_S = 0.7, 0.1
TOKENS = 0, 16, 32, 64
BURST_BLOCKS = MAX_READY_BLOCKS
HELP = """Decode throughput of two instances while rBlocks of a request of the one are moved to the other: 16, 32 and 64
tokens for each decode step, beside none; as many rBlocks at a time as leave together where a decode needs room.

\b
Examples:
  distkv bench moves --json moves.json --plot moves.png
  distkv bench moves --quick
"""


def measure(say: Say, *, quick: bool, rounds: int) -> Measured:
    """Run it. Nothing that it started is left on return."""
    shape, batch, context, sample_s = (MODELS["tiny"], 2, 128, 0.15) if quick else (MODELS["b"], 8, 1024, SAMPLE_S)
    cores: Sequence[int | None] = sorted(os.sched_getaffinity(0))
    placed = tuple(cores[:2]) if len(cores) > 1 else (None, None)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(0.0005)  # the drivers are two processes elsewhere
        say("making a model and starting workers")
        load = Load(checkpoint(shape, Path(scratch)), shape.vocab, batch, context)
        both = [stack.enter_context(Instance(name, load, core)) for name, core in zip(ROLES, placed, strict=True)]
        say("computing the KV of their sequences")
        members = [one.member for one in both]
        for beginning in [one.begin(members) for one in both]:
            beginning.result()
        moving = Moving(*both)
        variants = {variant_of(tokens): partial(_sample, moving, *_together(tokens), sample_s) for tokens in TOKENS}
        variants[ALONE] = partial(_sample, moving, 1, 1, sample_s)
        burst = min(BURST_BLOCKS, both[0].num_blocks)
        variants[BURST] = partial(_sample, moving, burst, burst, sample_s)
        samples = alternate(variants, rounds, report=say)
        refused = both[1].counters().checksum_refusals
        goals = goals_of(samples, moving.moved, refused, moving.wrong_slots())
    facts = {
        "model": f"random Llama {shape.name}, bfloat16, 1 thread per instance",
        "decoding": f"{batch} sequences behind {context} tokens at each instance",
        "placed": f"debtor on core {placed[0]}, creditor on core {placed[1]}",
        "moved_blocks": moving.moved,
        "block_bytes": shape.kv_bytes_per_token * BLOCK_TOKENS,
        "contenders": {
            variant_of(16): f"{LEAST_MOVE_BLOCKS} rBlocks after every {LEAST_MOVE_BLOCKS}th step of the debtor, in one "
            "Checksum and one Pull, as rManagers make room; 32, 64: as many, twice and four times as often",
            ALONE: "one after each step, in a Checksum and a Pull of its own",
            BURST: f"as many rBlocks after so many steps, {burst} at once in one Checksum and one Pull",
        },
    }
    return Measured(samples, goals, facts)


def _together(tokens: int) -> tuple[int, int]:
    """How many rBlocks leave at a time, and after how many steps each time, so that this is what leaves for each."""
    return (LEAST_MOVE_BLOCKS, LEAST_MOVE_BLOCKS * BLOCK_TOKENS // tokens) if tokens else (0, 1)


def _sample(moving: Moving, blocks: int, every: int, seconds: float) -> Mapping[str, float]:
    """Both instances for so long, while so many rBlocks move after every `every`th step of the debtor."""
    both = moving.debtor, moving.creditor
    moving.begin(blocks, every)
    try:
        time.sleep(SETTLE_S)
        started_s = time.monotonic()
        before, drivers_before = [thread_seconds(one.pid) for one in both], thread_seconds(os.getpid())
        for one in both:
            one.watch()
        time.sleep(seconds)
        rates = [one.steps_per_s() for one in both]
        took_s = time.monotonic() - started_s
        after, drivers_after = [thread_seconds(one.pid) for one in both], thread_seconds(os.getpid())
    finally:
        moving.end()
    found: dict[str, float] = {}
    for role, per_s, then_s, now_s in zip(ROLES, rates, before, after, strict=True):
        # What the thread that computes steps takes is most of it.
        *used_s, _ = sorted(now - then_s.get(thread, 0.0) for thread, now in now_s.items())
        found |= {rate_case(role): per_s, beside_case(role): 100 * sum(used_s) / took_s}
    for role, one in zip(ROLES, both, strict=True):
        found[messages_case(role)] = 100 * (drivers_after[one.driver] - drivers_before[one.driver]) / took_s
    return found


main = benchmark("moves", measure, HELP, unit_of=unit_of_name, packages=("torch",), rounds=(40, 2))
