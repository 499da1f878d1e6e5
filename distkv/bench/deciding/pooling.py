"""`distkv bench pooling`: which mixes of short and long requests have anything to gain from shared memory, and who gets
it, in simulation.

Chats and documents (`--drawn documents`) come faster than they are served. An oracle says what there is to gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import click

from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.quantile import quantile
from distkv.bench.harness.report import Goal, Report, judged, results
from distkv.bench.pooling.consecutive import one_after_the_other, serial_s
from distkv.bench.pooling.contenders import OFF, POOLED
from distkv.bench.workloads.trace import POOL_OF_LARGEST, documents_trace, pool_of
from distkv.sim.baselines.pooled import pooled
from distkv.sim.collecting import rarely_collected
from distkv.sim.outcome import Outcome
from distkv.sim.profiles.built_in import built_in
from distkv.sim.run import simulate
from distkv.sim.spec import SimPolicyName, SimSpec
from distkv.sim.trace import scaled
from distkv.wire.messages.profile import Profile
from distkv.wire.profile_file import load_profile

ORACLE, ONE_POOL = "oracle", "one pool"
PLAYERS: Mapping[str, SimPolicyName] = {
    OFF: "none",
    "contract": "contract",
    "greedy": "greedy",
    "even": "even",
    ORACLE: "single",
    ONE_POOL: "none",
}
PROFILE = "a100-llama2-7b"
SHARES, INSTANCES, ROUNDS = (0.1, 0.2, 0.4), (2, 3, 4), 5
REQUESTS, RATE = 25, 6.0
"""For each instance, and a second: more than any of them serves."""
EARLIER = 0.5
"""So many times as many requests of another draw come first, and are not counted: by these the instances know how long
outputs are, as those do that have served for a while."""
OTHERS = 1000
"""Added to the seed of a round, it is that of the requests before."""
MOST_OF_ALL = 0.8
WHOLE, EARLY, SHORT = "output tokens/s", "output tokens/s until 80 %", "time to first token of chats (p95)"
UNITS = {WHOLE: "tokens/s", EARLY: "tokens/s", SHORT: "s"}
GOAL = 1.35
HELP = f"""What pooling could gain by an oracle, and what the policies gain, by the share of documents among chats and
by the number of instances: throughput beside lending off, in simulation. Each round draws other requests, and others
yet that are served before them, uncounted. Until 80 % of all tokens nobody has run dry yet. The profile is that of
{PROFILE} if no other is given.

\b
Examples:
  distkv bench pooling --json pooling.json
  distkv bench pooling --profile b.json --share 0.4 --instances 3 --rounds 8
  distkv bench pooling --quick
"""


def measure(
    say: Say,
    *,
    quick: bool,
    profile: Path | None,
    shares: Sequence[float],
    instances: Sequence[int],
    median_tokens: int,
    rounds: int | None,
) -> Measured:
    """Run it; the report and its samples. Raises ConfigError for a profile that cannot be read."""
    known = built_in(PROFILE) if profile is None else load_profile(profile)
    shares, counts = shares or (SHARES[-1:] if quick else SHARES), instances or (INSTANCES[:1] if quick else INSTANCES)
    samples: Samples = {}
    for count, share in product(counts, shares):
        say(f"{count} instances, {share:.0%} documents")
        players = {name: _Player(known, count, share, median_tokens, name).play for name in PLAYERS}
        with rarely_collected():
            found = alternate(players, rounds or (1 if quick else ROUNDS), warmups=0)
        samples |= {f"{case}, {count} instances, {share:.0%} documents": values for case, values in found.items()}
    facts = machine_facts() | {
        "profile": PROFILE if profile is None else f"{known.model} on {known.device}",
        "requests": f"{REQUESTS} for each instance, {RATE:g} a second for each, medians of {median_tokens} tokens",
        "before_them": f"{EARLIER:g} times as many of another draw",
        "to_off": {
            f"{name}, {case}": str(paired_ratio(values, found[OFF]))
            for case, found in samples.items()
            for name, values in found.items()
            if name != OFF
        },
    }
    units = {case: UNITS[case.partition(",")[0]] for case in samples}
    return Report("pooling", facts, versions_of(()), results(samples, units), tuple(_goals(samples))), samples


class _Player:
    """Plays other requests each time, the same as the others in that turn."""

    def __init__(self, profile: Profile, instances: int, share: float, median_tokens: int, name: str) -> None:
        self._draw = partial(documents_trace, median_tokens=median_tokens, share=share)
        self._profile, self._instances, self._name = profile, instances, name
        self._seed = 0

    def play(self) -> Mapping[str, float]:
        """What comes of the next requests."""
        count, per_s = REQUESTS * self._instances, RATE * self._instances
        requests = scaled(self._draw(count, seed=self._seed), tokens=1.0, per_s=per_s)
        others = scaled(self._draw(round(EARLIER * count), seed=OTHERS + self._seed), tokens=1.0, per_s=per_s)
        pool = pool_of(requests, POOL_OF_LARGEST["documents"])
        spec = SimSpec(
            instances=self._instances,
            kv_tokens=pool,
            profile=self._profile,
            policy=PLAYERS[self._name],
            single=pooled(self._profile, self._instances, pool) if self._name == ORACLE else None,
            one_pool=self._name == ONE_POOL,
            settings={"profile": self._profile},
            seed=self._seed,
        )
        self._seed += 1
        pause_s = serial_s(others, self._profile)
        both = (others, requests)
        _, outcomes = one_after_the_other(both, pause_s, lambda played: simulate(played, spec).outcomes)
        return _reached(outcomes)


def _reached(outcomes: Sequence[Outcome]) -> dict[str, float]:
    came_s = sorted(one.request.arrival_s + at_s for one in outcomes for at_s in one.times_s)
    early = max(1, int(MOST_OF_ALL * len(came_s)))
    largest = max(one.request.num_tokens for one in outcomes)
    chats_s = [one.first_s for one in outcomes if one.times_s and one.request.num_tokens < largest / 2]
    return {
        WHOLE: len(came_s) / came_s[-1],
        EARLY: early / came_s[early - 1],
        SHORT: quantile(chats_s, 0.95),
    }


def _goals(samples: Samples) -> Iterator[Goal]:
    """Where the load has it at all."""
    for case, found in samples.items():
        if not case.startswith(f"{WHOLE},"):
            continue
        most = paired_ratio(found[ORACLE], found[OFF])
        for name in POOLED:
            goal = f"{case}: {name} to {OFF}"
            if most.low >= GOAL:
                yield judged(goal, paired_ratio(found[name], found[OFF]), least=GOAL)
            else:
                reached = str(paired_ratio(found[name], found[OFF]))
                yield Goal(goal, f"at least {GOAL:g}", reached, None, f"an oracle reaches {most}")


main = benchmark(
    "pooling",
    measure,
    HELP,
    [
        click.Option(
            ["--profile"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"Profile of one instance, as of `distkv profile`; {PROFILE} by its data sheet if not given.",
        ),
        click.Option(
            ["--share", "shares"],
            type=click.FloatRange(0, 1, min_open=True, max_open=True),
            multiple=True,
            help="Of documents among the requests; may be given again.",
        ),
        click.Option(["--instances"], type=click.IntRange(min=2), multiple=True, help="How many; may be given again."),
        click.Option(
            ["--median-tokens"],
            type=click.IntRange(min=4),
            default=48,
            show_default=True,
            help="Of prompt and output of a chat together, roughly; all lengths and pools follow.",
        ),
        click.Option(["--rounds"], type=click.IntRange(min=1), help="How many times other requests are drawn."),
    ],
    unit_of=lambda case: UNITS[case.partition(",")[0]],
)
