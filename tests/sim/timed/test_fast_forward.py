"""Results of quiet decode that are handed over together: the same commands at the same times, the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from distkv.control import commands as c
from distkv.sim.spec import Fault, Kill, Restart, SimSpec, Slow
from distkv.sim.timed.cluster import TimedCluster
from distkv.sim.trace import TraceRequest
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.to_client import TokenChunk
from tests.lanes import rest_is_slow
from tests.sim.timed.parts import profile, spec, trace
from tests.sim.timed.test_run import loaded

Recorded = list[tuple[float, str, c.Command]]


class Recording(TimedCluster):
    """Keeps what all rManagers issue but Steps and tokens, how many events they handle, and what they handled behind
    results that had been kept."""

    def __init__(self, run: SimSpec) -> None:
        self.recorded: Recorded = []
        self.num_events = 0
        self.interrupting: set[str] = set()
        super().__init__(run)

    def start(self, name: str) -> None:
        super().start(name)
        node = self.processes.nodes[name]
        handle, continued, has_caught_up = node.handle, node.continued, [False]

        def note(event: c.Event, now: float) -> list[c.Command]:
            commands = handle(event, now)
            self.num_events += 1
            if has_caught_up.pop():
                self.interrupting.add(type(getattr(event, "message", event)).__name__)
            has_caught_up.append(False)
            self.recorded += [(now, name, command) for command in commands if is_decided(command)]
            return commands

        def note_kept(decoded: c.Decoded) -> c.Continued:
            self.num_events += 1
            has_caught_up[:] = [True]
            return continued(decoded)

        node.handle = note  # type: ignore[method-assign]
        node.continued = note_kept  # type: ignore[method-assign]


def is_decided(command: c.Command) -> bool:
    """Whether it is more than the next Step, or a token on its way."""
    match command:
        case c.TellWorker(tw.Step()):
            return False
        case c.Answer(_, TokenChunk(finish_reason=None)):
            return False
        case _:
            return True


def came_of(cluster: TimedCluster) -> bytes:
    """All that can be compared at the end."""
    outcomes = [(list(one.times_s), one.failed) for one in cluster.clients.outcomes]
    memory = [(one.at_s, list(one.own), list(one.lent), list(one.running), one.loans) for one in cluster.samples]
    return msgspec.json.encode((outcomes, memory, cluster.count(), cluster.agenda.now(), cluster.events))


def both(requests: Sequence[TraceRequest], run: SimSpec) -> tuple[Recording, Recording]:
    """The same trace with every result handled when it comes, and with quiet decode handed over together."""
    clusters = [Recording(msgspec.structs.replace(run, fast_forward=how)) for how in (False, True)]
    for cluster in clusters:
        cluster.play(requests)
    slow, fast = clusters
    for one, other in zip(slow.recorded, fast.recorded, strict=False):
        assert one == other
    assert len(slow.recorded) == len(fast.recorded)
    assert came_of(slow) == came_of(fast)
    return slow, fast


def mixed(seed: int, count: int, per_s: float) -> list[TraceRequest]:
    """Short ones, with some that take most of a pool, or more."""
    random = Random(seed)
    requests = loaded(count, per_s, seed)
    return [
        one if random.random() > 0.15 else TraceRequest(one.arrival_s, random.randint(900, 2200), one.output_tokens)
        for one in requests
    ]


RATES = [("contract", 2.0), ("greedy", 2.0), ("contract", 0.5), ("none", 2.0), ("even", 2.0), ("contract", 8.0)]
RATES += [(policy, per_s) for policy in ("none", "greedy", "even") for per_s in (0.5, 8.0)]


@pytest.mark.parametrize(("policy", "per_s"), rest_is_slow(RATES, 3))
def test_the_same_is_decided_at_any_rate(policy: str, per_s: float) -> None:
    run = spec(instances=3, policy=policy, seed=int(per_s), message_s=2e-4, pipe_s=1e-4, checks=False)
    slow, fast = both(mixed(int(per_s), 25, per_s), run)
    assert slow.num_events > fast.num_events


def test_the_same_is_decided_whatever_fails() -> None:
    faults: list[Fault] = []
    for at_s, name in ((3.0, "i0"), (9.0, "i1"), (15.0, "i2")):
        faults += [Kill(at_s, name), Restart(at_s + 1.5, name), Slow(at_s + 2.0, at_s + 4.0, name, 3.0)]
    run = spec(instances=3, faults=tuple(faults), seed=5, message_s=2e-4, pipe_s=1e-4, deadline_s=6.0, checks=False)
    both(mixed(5, 30, 1.5), run)


def test_the_same_is_decided_for_debtors_and_creditors() -> None:
    run = spec(message_s=2e-4, pipe_s=1e-4, keep_events=True, settings={"max_serve_fraction": 0.05})
    slow, fast = both(trace((0.0, 2000, 300), (2.0, 50, 300), (5.0, 300, 200)), run)
    assert fast.count().remote_attended_tokens > 0
    assert fast.num_events < 0.75 * slow.num_events


def test_the_same_is_decided_where_instances_slow_each_other() -> None:
    run = spec(profile=profile(crowded_times=1.4), message_s=2e-4, pipe_s=1e-4)
    both(loaded(12, 2.0), run)


def test_most_results_of_quiet_decode_are_not_handled_alone() -> None:
    slow, fast = both(trace((0.0, 100, 400), (0.1, 100, 400), (0.2, 100, 400)), spec(instances=1))
    assert fast.num_events < slow.num_events / 4


def test_clients_that_say_that_they_are_there_interrupt_nothing() -> None:
    _, fast = both(trace((0.0, 100, 400), (0.1, 100, 400)), spec(instances=1))
    assert "Tick" in fast.interrupting and "KeepAlive" not in fast.interrupting


@pytest.mark.parametrize("policy", ["contract", "greedy", "even"])
@pytest.mark.parametrize("seed", rest_is_slow(range(3)))
def test_the_same_is_decided_whatever_disturbs_long_decodes(policy: str, seed: int) -> None:
    """Debtors, arrivals, stragglers, deaths and deadlines come while decodes are computed in one go."""
    random = Random(seed)
    requests = [
        TraceRequest(at_s, random.choice((60, 120, 3900)), random.randint(300, 900))
        for at_s in sorted(random.uniform(0, 20) for _ in range(10))
    ]
    faults: list[Fault] = [Kill(21.0, "i2"), Restart(23.0, "i2")]
    faults += [Slow(at_s, at_s + random.uniform(0.01, 3.0), "i0", 2.5) for at_s in (3.0, 11.0)]
    run = spec(
        instances=3,
        kv_tokens=4000,
        policy=policy,
        seed=seed,
        message_s=2e-4,
        pipe_s=1e-4,
        deadline_s=18.0,
        faults=tuple(faults),
        checks=False,
    )
    _, fast = both(requests, run)
    assert fast.forward.num_kept > 0.25 * fast.forward.num_results
