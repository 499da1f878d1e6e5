"""The state machines do the same in both simulators, where time does not matter."""

from __future__ import annotations

from typing import Any

from distkv.control import commands as c
from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.machines.node import Node
from distkv.sim.timed.cluster import TimedCluster
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from tests.sim.parts import prompt
from tests.sim.timed.parts import PROFILE, spec, trace

SETTINGS = {"max_num_batched_tokens": 256, "block_tokens": PROFILE.block_tokens}


def recorded(node: Node[Any]) -> list[c.Command]:
    """What the rManager of a node will have issued."""
    issued: list[c.Command] = []
    handle = node.handle

    def note(event: c.Event, now: float) -> list[c.Command]:
        commands = handle(event, now)
        issued.extend(commands)
        return commands

    node.handle = note  # type: ignore[method-assign]
    return issued


def drawn(pools: list[int], num_prompt: int, max_tokens: int) -> list[list[c.Command]]:
    """What the instances of the simulator with ticks do for a request at i0."""
    cluster = SimCluster([tokens // PROFILE.block_tokens for tokens in pools], seed=1, **SETTINGS)
    issued = [recorded(node) for node in cluster.nodes.values()]
    cluster.submit("i0", "r0", prompt(num_prompt), max_tokens, can_move=True)
    cluster.finish()
    return issued


def timed(pools: list[int], num_prompt: int, max_tokens: int) -> list[list[c.Command]]:
    """The same in simulated time; the first is where the request went."""
    run = spec(instances=len(pools), kv_tokens=pools[0], settings={"max_num_batched_tokens": 256}, fast_forward=False)
    cluster = TimedCluster(run)
    cluster.agenda.run(until=1.9)
    issued = {name: recorded(node) for name, node in cluster.processes.nodes.items()}
    cluster.play(trace((0.0, num_prompt, max_tokens)))
    return sorted(issued.values(), key=lambda commands: not steps_of(commands))


def steps_of(commands: list[c.Command]) -> list[list[tuple[Any, ...]]]:
    """Of each Step, what it computes of whom, and where that lies."""
    steps = [one.body for one in commands if isinstance(one, c.TellWorker) and isinstance(one.body, tw.Step)]
    return [
        [(seq.request_id, seq.start, seq.end, seq.attempt, seq.local, seq.sample is not None) for seq in step.seqs]
        for step in steps
    ]


def test_a_request_that_fits_is_computed_in_the_same_steps() -> None:
    assert steps_of(drawn([1600], 600, 20)[0]) == steps_of(timed([1600], 600, 20)[0]) != []


def test_a_request_that_does_not_fit_borrows_the_same() -> None:
    for issued in (drawn([1600, 1600], 2000, 20), timed([1600, 1600], 2000, 20)):
        asked = [one.body for one in issued[0] if isinstance(one, c.TellPeer)]
        granted = [one.body for one in issued[1] if isinstance(one, c.Answer) and isinstance(one.body, tr.Granted)]
        pulled = [one.body for one in issued[1] if isinstance(one, c.TellWorker) and isinstance(one.body, tw.Pull)]
        (first,) = [message for message in asked if isinstance(message, tr.TryMoveKvcache)]
        assert (first.num_blocks, len(granted)) == (27, 1)
        assert sum(len(pull.slots) for pull in pulled) >= 2020 // PROFILE.block_tokens - 100
