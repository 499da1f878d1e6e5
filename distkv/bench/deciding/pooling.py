"""`distkv bench pooling`: which mixes of short and long requests have anything to gain from shared memory, and who gets
it, in simulation.

Chats and documents come faster than they are served, where nothing else is asked for. An oracle says what there is to
gain.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import click

from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.finite import FiniteRange
from distkv.bench.harness.quantile import quantile
from distkv.bench.harness.report import Goal, judged
from distkv.bench.pooling.consecutive import one_after_the_other, serial_s
from distkv.bench.pooling.contenders import OFF, POOLED
from distkv.bench.workloads.trace import (
    DRAWN,
    POOL_OF_LARGEST,
    Drawn,
    documents_trace,
    drawn_trace,
    part_of,
    pool_of,
    read_trace,
)
from distkv.errors import ConfigError
from distkv.sim.baselines.pooled import pooled
from distkv.sim.collecting import rarely_collected
from distkv.sim.outcome import Outcome
from distkv.sim.profiles.built_in import built_in
from distkv.sim.run import simulate
from distkv.sim.spec import SimPolicyName, SimSpec
from distkv.sim.trace import TraceRequest, scaled
from distkv.wire.messages.profile import Profile
from distkv.wire.profile_file import load_profile

_Draw = Callable[[int, int, int], tuple[Sequence[TraceRequest], Sequence[TraceRequest]]]
"""Draws so many requests by a seed, and so many others that come before them: these first."""
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
SHARES, INSTANCES = (0.1, 0.2, 0.4), (2, 3, 4)
MEDIAN_TOKENS = 48
REQUESTS, RATE = 25, 6.0
"""For each instance, and a second: more than any of them serves."""
EARLIER = 0.5
"""So many times as many requests of another draw come first, and are not counted: by these the instances know how long
outputs are, as those do that have served for a while."""
OTHERS = 1000
"""Added to the seed of a round, it is that of the requests before."""
POOL_OF_TRACE = POOL_OF_LARGEST["variance"]
"""What a pool holds, in sizes of the largest request of the part that is played."""
MOST_OF_ALL = 0.8
WHOLE, EARLY, FIRST = "output tokens/s", "output tokens/s until 80 %", "time to first token (mean)"
CHATS, SHORT = "time to first token of chats (p95)", "time to first token of short requests (p99)"
"""Chats have less than half of the largest request's tokens, short requests less than the median; there are none where
all are alike."""
UNITS = {WHOLE: "tokens/s", EARLY: "tokens/s", FIRST: "s", CHATS: "s", SHORT: "s"}
GOAL = 1.35
HELP = f"""What pooling could gain by an oracle, and what the policies gain, by the share of documents among chats and
by the number of instances: throughput beside lending off, in simulation; or, with --drawn or --trace, and --rate, what
becomes of another load at each rate. Each round draws other requests, and others yet that are served before them,
uncounted. Until 80 % of all tokens nobody has run dry yet. The profile is that of {PROFILE} if no other is given.

\b
Examples:
  distkv bench pooling --json pooling.json
  distkv bench pooling --profile b.json --share 0.4 --instances 3 --rounds 8
  distkv bench pooling --drawn variance --instances 2 --rate 0.75 --rate 3 --player contract --rounds 32
  distkv bench pooling --trace azure_conv_2023.csv --scale-tokens 0.5 --instances 2 --rate 2 --player contract
  distkv bench pooling --quick
"""


def measure(
    say: Say,
    *,
    quick: bool,
    profile: Path | None,
    drawn: Drawn | None,
    trace: Path | None,
    scale_tokens: float | None,
    shares: Sequence[float],
    rates: Sequence[float],
    instances: Sequence[int],
    players: Sequence[str],
    median_tokens: int | None,
    rounds: int,
) -> Measured:
    """Run it. Raises ConfigError for a profile or a trace that cannot be read, a trace with
    fewer requests than are played, and for shares of documents in a load that has none."""
    known = built_in(PROFILE) if profile is None else load_profile(profile)
    if trace is not None and (shares or drawn or median_tokens):
        raise ConfigError("trace", "what is drawn has shares and lengths, a trace has its own", "leave one out")
    if trace is None and scale_tokens is not None:
        raise ConfigError("scale_tokens", "there is no trace whose lengths it could scale", "say --median-tokens")
    drawn, median_tokens = drawn or "documents", median_tokens or MEDIAN_TOKENS
    if shares and drawn != "documents":
        raise ConfigError("share", f"there are no documents in {drawn!r}", "leave it out")
    counts = instances or (INSTANCES[:1] if quick else INSTANCES)
    if trace is None:
        loads = _loads(drawn, shares or (SHARES[-1:] if quick else SHARES), median_tokens)
        of_largest = POOL_OF_LARGEST[drawn]
    else:
        loads = _of_trace(trace, scale_tokens or 1.0, least=round((1 + EARLIER) * REQUESTS * max(counts)))
        of_largest = POOL_OF_TRACE
    names = (OFF, *dict.fromkeys(one for one in players or PLAYERS if one != OFF))
    samples: Samples = {}
    for count, load, per_s in product(counts, loads, rates or (RATE,)):
        title = f"{count} instances, {load}" + (f", {per_s:g}/s each" if rates else "")
        say(title)
        playing = {name: _Player(known, count, loads[load], per_s, of_largest, name).play for name in names}
        with rarely_collected():
            found = alternate(playing, rounds, warmups=0)
        samples |= {f"{case}, {title}": values for case, values in found.items()}
    facts = {
        "profile": PROFILE if profile is None else f"{known.model} on {known.device}",
        "requests": f"{REQUESTS} for each instance, {' or '.join(f'{one:g}' for one in rates or (RATE,))} a second for "
        f"each"
        + (f", medians of {median_tokens} tokens" if trace is None else f", lengths times {scale_tokens or 1:g}"),
        "before_them": f"{EARLIER:g} times as many, " + ("of another draw" if trace is None else "those before them"),
        "to_off": {
            f"{name}, {case}": str(paired_ratio(values, found[OFF]))
            for case, found in samples.items()
            for name, values in found.items()
            if name != OFF
        },
    }
    return Measured(samples, tuple(_goals(samples)), facts)


def _loads(drawn: Drawn, shares: Sequence[float], median_tokens: int) -> dict[str, _Draw]:
    """By title."""
    if drawn != "documents":
        return {drawn: _twice(lambda count, seed: drawn_trace(drawn, count, median_tokens, seed))}
    return {f"{share:.0%} documents": _twice(partial(_documents, median_tokens, share)) for share in shares}


def _twice(draw: Callable[[int, int], list[TraceRequest]]) -> _Draw:
    """Those before are another draw."""
    return lambda count, before, seed: (draw(before, OTHERS + seed), draw(count, seed))


def _of_trace(path: Path, scale_tokens: float, least: int) -> dict[str, _Draw]:
    """By title; each draw is a part of the trace, which has at least so many requests. Those before it that a pool for
    it would not hold are left out; if none is left, it is played twice."""
    requests = scaled(read_trace(path), tokens=scale_tokens)
    if len(requests) < least:
        raise ConfigError("trace", f"{path} has {len(requests)} requests, {least} are played", "take fewer instances")

    def draw(count: int, before: int, seed: int) -> tuple[Sequence[TraceRequest], Sequence[TraceRequest]]:
        part = part_of(requests, before + count, seed)
        others, counted = part[:before], part[before:]
        pool = pool_of(counted, POOL_OF_TRACE)
        return [one for one in others if one.num_tokens <= pool] or counted, counted

    return {path.name: draw}


def _documents(median_tokens: int, share: float, count: int, seed: int) -> list[TraceRequest]:
    return documents_trace(count, median_tokens, seed, share=share)


class _Player:
    """Plays other requests each time, the same as the others in that turn. per_s: for each instance. of_largest: what
    a pool holds, in sizes of the largest request."""

    def __init__(
        self, profile: Profile, instances: int, draw: _Draw, per_s: float, of_largest: float, name: str
    ) -> None:
        self._profile, self._instances, self._name = profile, instances, name
        self._draw, self._per_s, self._of_largest = draw, per_s, of_largest
        self._seed = 0

    def play(self) -> Mapping[str, float]:
        """What comes of the next requests."""
        count, per_s = REQUESTS * self._instances, self._per_s * self._instances
        drawn = self._draw(count, round(EARLIER * count), self._seed)
        others, requests = (scaled(each, tokens=1.0, per_s=per_s) for each in drawn)
        pool = pool_of(requests, self._of_largest)
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
    served = [one for one in outcomes if one.times_s]
    sizes = [one.request.num_tokens for one in outcomes]
    of_chats, of_short = (
        [one.first_s for one in served if one.request.num_tokens < bound]
        for bound in (max(sizes) / 2, statistics.median(sizes))
    )
    return {
        WHOLE: len(came_s) / came_s[-1],
        EARLY: early / came_s[early - 1],
        FIRST: statistics.fmean(one.first_s for one in served),
    } | {
        case: quantile(firsts_s, of)
        for case, firsts_s, of in ((CHATS, of_chats, 0.95), (SHORT, of_short, 0.99))
        if firsts_s
    }


def _goals(samples: Samples) -> Iterator[Goal]:
    """Where the load has it at all."""
    for case, found in samples.items():
        if not case.startswith(f"{WHOLE},") or ORACLE not in found:
            continue
        most = paired_ratio(found[ORACLE], found[OFF])
        for name in (one for one in POOLED if one in found):
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
            ["--drawn"],
            type=click.Choice(DRAWN),
            help="Which load: outputs of high variance; with requests too long for one instance; all alike; documents "
            "among chats, if neither this nor a trace is given.",
        ),
        click.Option(
            ["--trace"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="CSV file with arrival_s, prompt_tokens and output_tokens, of which parts are played in its rhythm.",
        ),
        click.Option(
            ["--scale-tokens"],
            type=FiniteRange(min=0, min_open=True),
            help="Multiplies the lengths of the trace.",
        ),
        click.Option(
            ["--share", "shares"],
            type=FiniteRange(0, 1, min_open=True, max_open=True),
            multiple=True,
            help="Of documents among the requests; may be given again.",
        ),
        click.Option(
            ["--rate", "rates"],
            type=FiniteRange(min=0, min_open=True),
            multiple=True,
            help=f"Requests a second for each instance; may be given again. {RATE:g} if not given.",
        ),
        click.Option(["--instances"], type=click.IntRange(min=2), multiple=True, help="How many; may be given again."),
        click.Option(
            ["--player", "players"],
            type=click.Choice(list(PLAYERS)),
            multiple=True,
            help=f"Who plays beside {OFF}; may be given again. All if not given.",
        ),
        click.Option(
            ["--median-tokens"],
            type=click.IntRange(min=4),
            help="Of prompt and output of a chat together, roughly; all lengths and pools follow. "
            f"{MEDIAN_TOKENS} if not given.",
        ),
    ],
    unit_of=lambda case: UNITS[case.partition(",")[0]],
    rounds=(5, 1),
)
