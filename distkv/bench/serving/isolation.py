"""`distkv bench isolation`: what others notice while one client attacks a gateway with plain HTTP.

Health checks and ordinary streams come from a process of real-time priority, attacks by turns from this one. Between
them is a quiet span, and what is seen with nobody attacking is measured like an attack.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop

from distkv.bench.attacks.attacker import play
from distkv.bench.attacks.observation import ASK_S, STREAMS, TOKENS
from distkv.bench.attacks.observer import Observer
from distkv.bench.attacks.requests import FULL, QUICK, Attack, attacks
from distkv.bench.harness.alternate import Samples, alternate
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.machine import raise_descriptor_limit
from distkv.bench.harness.quantile import p99
from distkv.bench.harness.report import Goal
from distkv.bench.harness.timing.processes import OtherPrograms
from distkv.client.local.cluster import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint

INSTANCES = 2
KV_TOKENS = 65536
SPARE_DESCRIPTORS = 512
"""Of the attacker, for everything else."""
LEAST_CHECKS = 300
"""In an attack, for a p99 to be more than the slowest of them."""
MOST_LIVE_MS = 50.0
MOST_LATE_MS = 5.0
"""Of the health checks at p99, for a missed goal to be the cluster's fault."""
MOST_OTHER_CORES = 0.1
"""What other programs of this machine may use in an attack, for the same."""
NOBODY = "nobody attacks"
LOST = frozenset({"unreachable", "dead"})
LIVE_MEDIAN, LIVE_HIGH, LIVE_MOST = "/live, median", "/live, p99", "/live, max"
FIRST_HIGH, BETWEEN_HIGH = "time to first token of others, p99", "time between tokens of others, p99"
UNITS = dict.fromkeys((LIVE_MEDIAN, LIVE_HIGH, LIVE_MOST, FIRST_HIGH, BETWEEN_HIGH), "ms")
HELP = """What others notice while one client attacks a gateway: health checks, and streams that are to go on. Attacks
are plain HTTP with default settings: long texts, very many prompts, token ids and choices, bodies that never end.

\b
Examples:
  distkv bench isolation --json isolation.json --plot isolation.png
  distkv bench isolation --quick
"""


class StateLine(msgspec.Struct, frozen=True):
    """A line of the gManager's log: the state of an instance, if `event` says so."""

    event: str
    state: str = ""

    @property
    def is_loss(self) -> bool:
        """An instance is unreachable or dead now."""
        return self.event == "instance_state" and self.state in LOST


class Losses:
    """What the gManager's log at `path` says of instances it lost."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes = path, 0
        self._decoder = msgspec.json.Decoder(StateLine)

    def since_last(self) -> int:
        """How many since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        return sum(self._decoder.decode(line).is_loss for line in whole.splitlines())


class Times(msgspec.Struct, frozen=True):
    """warm_s: before the first attack. span_s: each attack is played again until so long has passed. quiet_s: after
    each attack; what health checks take then is not measured."""

    warm_s: float
    span_s: float
    quiet_s: float


FULL_TIMES = Times(warm_s=5.0, span_s=5.0, quiet_s=2.0)
QUICK_TIMES = Times(warm_s=0.5, span_s=1.1 * LEAST_CHECKS * ASK_S, quiet_s=0.2)


class Siege:
    """One cluster under attacks. By attack: what the attacker was answered, what happened to others, the fewest
    health checks of a round, and the most cores that other programs of this machine used."""

    def __init__(self, cluster: LocalCluster, observer: Observer, times: Times) -> None:
        self._address = urlsplit(cluster.http_url)
        self._observer, self._losses, self._times = observer, Losses(cluster.log_dir / "gmanager.log"), times
        self.answers: dict[str, Counter[str]] = {}
        self.unanswered: dict[str, Counter[str]] = {}
        self.failed: dict[str, Counter[str]] = {}
        self.lost: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.checks: dict[str, int] = {}
        self.other_cores: dict[str, float] = {}
        self.late_ms = 0.0

    def measure(self, attack: Attack) -> Mapping[str, float]:
        """Play it, again and again until its time is up, then leave the cluster alone: what streams have to wait for
        may come only then."""
        self._observer.cut()
        others = OtherPrograms()
        answers = uvloop.run(self._play(attack))
        other_cores = others.cores()
        seen = self._observer.cut()
        time.sleep(self._times.quiet_s)
        after = self._observer.cut()
        self.answers.setdefault(attack.name, Counter()).update(answers)
        for one in (seen, after):
            self.unanswered.setdefault(attack.name, Counter()).update(one.unanswered)
            self.failed.setdefault(attack.name, Counter()).update(one.failed)
            self.refused[attack.name] += one.refused
        self.lost[attack.name] += self._losses.since_last()
        checks = len(seen.live_s) + sum(seen.unanswered.values())
        self.checks[attack.name] = min(checks, self.checks.get(attack.name, checks))
        self.other_cores[attack.name] = max(other_cores, self.other_cores.get(attack.name, 0.0))
        self.late_ms = max(self.late_ms, 1e3 * p99(seen.late_s or [0.0]))
        times_s: dict[str, tuple[Callable[[list[float]], float], list[float]]] = {
            LIVE_MEDIAN: (statistics.median, seen.live_s),
            LIVE_HIGH: (p99, seen.live_s),
            LIVE_MOST: (max, seen.live_s),
            FIRST_HIGH: (p99, seen.first_s + after.first_s),
            BETWEEN_HIGH: (p99, seen.between_s + after.between_s),
        }
        return {case: 1e3 * of(values) for case, (of, values) in times_s.items() if values}

    async def _play(self, attack: Attack) -> Counter[str]:
        host, port = self._address.hostname, self._address.port
        assert host is not None and port is not None
        answers: Counter[str] = Counter()
        until_s = time.monotonic() + self._times.span_s
        while time.monotonic() < until_s:
            if attack.raw:
                answers += await play(attack, host, port)
            else:
                await asyncio.sleep(until_s - time.monotonic())
        return answers


def measure(say: Say, *, quick: bool, rounds: int) -> Measured:
    """Run it."""
    scale, times = (QUICK, QUICK_TIMES) if quick else (FULL, FULL_TIMES)
    played = (Attack(NOBODY, (), 0.0), *attacks(scale, raise_descriptor_limit() - SPARE_DESCRIPTORS))
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        model = make_checkpoint(Path(scratch) / "model", text_for_tokenizer=HELP)
        say("starting instances")
        with (
            LocalCluster(
                model,
                INSTANCES,
                KV_TOKENS,
                threads=1,
                gmanager_options={"log_json": True, "log_level": "info"},
                log_level="warning",
            ) as cluster,
            Observer(cluster.http_url) as observer,
        ):
            siege = Siege(cluster, observer, times)
            time.sleep(times.warm_s)
            samples = alternate(
                {attack.name: partial(siege.measure, attack) for attack in played}, rounds, warmups=0, report=say
            )
    problem = observer.priority.problem
    facts = {
        "model": "random Llama, float32, hidden 64, layers 2",
        "cluster": f"{INSTANCES} instances of one thread and {KV_TOKENS:,} tokens of KV, a gateway, default settings",
        "others": f"{STREAMS} streams of {TOKENS} tokens, one after the other; /live every {1e3 * ASK_S:g} ms",
        "observer": f"of ordinary priority, may wait for a core itself ({problem})"
        if problem
        else "of real-time priority",
        "checks": {name: str(count) for name, count in siege.checks.items()},
        "cores_of_other_programs": {name: f"{cores:.2f}" for name, cores in siege.other_cores.items()},
        "observer_late_p99_ms": round(siege.late_ms, 1),
        "answers": {name: _said(counts) for name, counts in siege.answers.items()},
        "refused_streams": _said(siege.refused),
    }
    return Measured(samples, _goals(samples, siege), facts)


def _goals(samples: Samples, siege: Siege) -> tuple[Goal, ...]:
    goals = []
    for name, checks in siege.checks.items():
        goal, target = f"/live p99, {name}", f"at most {MOST_LIVE_MS:g} ms"
        if (values := samples.get(LIVE_HIGH, {}).get(name)) is None:
            goals.append(Goal(goal, target, "no answer", False))
            continue
        met: bool | None = max(values) <= MOST_LIVE_MS
        why = ""
        if checks < LEAST_CHECKS:
            met, why = None, f"{checks} checks are too few for a p99"
        elif not met and siege.late_ms > MOST_LATE_MS:
            met, why = None, f"the observer itself waited {siege.late_ms:.0f} ms for a core"
        elif not met and (cores := siege.other_cores[name]) > MOST_OTHER_CORES:
            met, why = None, f"other programs took {cores:.2f} cores meanwhile"
        goals.append(Goal(goal, target, f"{max(values):.1f} ms", met, why))
    for what, counts in (
        ("health checks without an answer", _by_attack(siege.unanswered)),
        ("streams of others that failed", _by_attack(siege.failed)),
        ("instances called unreachable or dead", _said(siege.lost)),
    ):
        goals.append(Goal(what, "none", counts or "none", not counts))
    return tuple(goals)


def _by_attack(reasons: Mapping[str, Counter[str]]) -> str:
    return "; ".join(f"{name}: {_said(counts)}" for name, counts in reasons.items() if counts)


def _said(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


main = benchmark(
    "isolation",
    measure,
    HELP,
    unit_of=UNITS.__getitem__,
    packages=("uvicorn", "uvloop"),
    rounds=(2, 1),
)
