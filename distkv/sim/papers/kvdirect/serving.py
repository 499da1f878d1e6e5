"""004 Fig. 13, 14 and 16 (§5.2, §5.3): papers and conversations at rising rate, where one instance computes prompts and
one decodes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter

import msgspec

from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.disaggregated.pushing import Pushing
from distkv.sim.datasets.draw import dataset
from distkv.sim.papers.draws import mean_ratio
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series
from distkv.sim.papers.kvdirect.stages import Of, Stages, by_vllm, divided, high, mean, shared
from distkv.sim.trace import TraceRequest

DATASETS: Mapping[str, str] = {"arXiv": "kvdirect-arxiv", "ShareGPT": "kvdirect-sharegpt"}
RATES_PER_S = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Up to the highest that the text names; of two instances together."""
LIGHT = 1
"""Of these, the highest at which prompts do not queue."""
WINDOW_S = 600.0
DRAWS = 5
PULL, PUSH, VLLM, CHUNKED, SHARED = "KVDirect", "the same, pushed", "vLLM", "vLLM, chunked", "distkv"
SYSTEMS: Mapping[str, tuple[Of, float]] = {
    PULL: (partial(divided, 1, 1, Pulling), 1.0),
    PUSH: (partial(divided, 1, 1, Pushing), 1.0),
    VLLM: (partial(by_vllm, chunked=False), 0.5),
    CHUNKED: (partial(by_vllm, chunked=True), 0.5),
    SHARED: (partial(shared, 2), 1.0),
}
"""With the share of the rate that each gets: vLLM is one instance, which gets half (004 §5.2.1)."""
Takes = Callable[[Stages], float | None]
TOTAL, FIRST, BETWEEN = map(attrgetter, ("total_s", "first_s", "between_s"))
STAGES: Mapping[str, Takes] = {
    "waiting to be computed": attrgetter("queue_s"),
    "prefill": attrgetter("prefill_s"),
    "waiting for memory": attrgetter("memory_s"),
    "transfer": attrgetter("transfer_s"),
    "decode": attrgetter("decode_s"),
}
ASSUMED = (
    "Mistral-Large on eight H100 each, with their memory and links of 400 Gb/s a GPU, of which KVDirect's reads reach "
    "22.23 GB/s as printed. Only mean lengths are printed; how they lie is assumed, and how long requests arrive: "
    "{window_s:g} s, {draws} draws. vLLM and KVDirect, which is built on it, compute prompts before "
    "anybody decodes, in steps of as many whole ones as have 131,072 tokens; with chunked prefill, vLLM fills steps of "
    "2,048."
)
PROMPTS_NOTE = (
    "Who computes prompts has half of the GPUs: an arXiv prompt of the mean length takes it 3.0 s, so from 0.3/s on "
    "they queue, while both of vLLM's compute them. By all arithmetic that the data sheet prints it would be 1.7 s, "
    "and 0.5/s 85 % of what those GPUs could do at most; yet half of theirs is waiting for memory to decode (Fig. 14)."
)
MEMORY_NOTE = (
    "Who decodes has half of the memory, which from 0.2/s on is full: conversations wait for it, and cannot have any "
    "of the other half."
)
ROOM_NOTE = (
    "With 16-bit weights who decodes has memory for 22 papers and decodes one in 5 s, so three at a time at 0.5/s. "
    "Theirs wait for memory, as they only can where there is less of it or where they decode several times as slowly."
)
WAITING_NOTE = (
    "Most of the latency is waiting from 0.3/s on. At 0.1/s the share is 1.0 % (arXiv) and 0.08 % (ShareGPT, whose "
    "outputs take a minute)."
)
PUSH_NOTE = (
    "A push loses where memory to decode is waited for and who computes prompts could have computed meanwhile. Here "
    "prompts are what is waited for with arXiv, and of ShareGPT both; so little depends on who has memory when."
)


class Point(msgspec.Struct, frozen=True):
    """Of a dataset, at a rate: what each draw's requests took."""

    rate_per_s: float
    draws: tuple[list[Stages], ...]

    def each(self, of: Callable[[Sequence[Stages]], float]) -> list[float]:
        """By draw."""
        return [of(draw) for draw in self.draws]


Found = Mapping[str, Mapping[str, Sequence[Point]]]
"""By dataset and system, one rate after the other."""


def figure_13(effort: Effort, say: Say) -> Figure:
    """Latencies of the ninth of ten requests, beside vLLM at the same rate for each instance."""
    found = _played(effort, say, (PULL, VLLM, CHUNKED, SHARED))
    theirs = {"arXiv": 55.0, "ShareGPT": 24.0}
    return Figure(
        name="004-13",
        title="Requests of 004, divided and not, Mistral-Large on two hosts of 8 H100",
        x_label="requests/s",
        y_label="",
        panels=_panels(found),
        ratios=tuple(ratio for name, systems in found.items() for ratio in _ratios_13(name, theirs[name], systems)),
        notes=(
            _assumed(effort),
            "Latency is that of the ninth of ten requests at each rate, and its ratio the mean over rates. vLLM is one "
            "instance that gets half of the requests, as theirs; distkv is two, by `contract`. Until "
            "the first token counts what KVDirect's requests wait for memory where they decode, as theirs does.",
        ),
    )


def figure_14(effort: Effort, say: Say) -> Figure:
    """How long requests are in each stage."""
    found = _played(effort, say, (PULL,))
    theirs = {"arXiv": (1.1, 52.0), "ShareGPT": (0.5, 30.0)}
    panels, ratios = list[Panel](), list[Ratio]()
    for name, systems in found.items():
        points = systems[PULL]
        panels.append(
            Panel(
                title=name, series=tuple(_by_rate(stage, points, partial(mean, of=of)) for stage, of in STAGES.items())
            )
        )
        transfers, waits = (partial(_share, stage=stage) for stage in ("transfer", "waiting for memory"))
        over_rates = [
            statistics.fmean(of_draw) for of_draw in zip(*(one.each(transfers) for one in points), strict=True)
        ]
        moved, waited = theirs[name]
        highest = points[-1]
        ratios += [
            _ratio(f"{name}: transfer, % of the latency", (moved, moved), over_rates, WAITING_NOTE),
            _ratio(
                f"{name}: waiting for memory to decode, % of the latency at {highest.rate_per_s:g}/s",
                (waited, waited),
                highest.each(waits),
                ROOM_NOTE if name == "arXiv" else MEMORY_NOTE,
            ),
        ]
    return Figure(
        name="004-14",
        title="Stages of a request that is computed by one instance and decoded by another",
        x_label="requests/s",
        y_label="mean, s",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(_assumed(effort),),
    )


def figure_16(effort: Effort, say: Say) -> Figure:
    """Keys and values that are pulled when there is memory, and pushed where it was taken before."""
    found = _played(effort, say, (PULL, PUSH))
    slower = [over(systems[PUSH], systems[PULL], TOTAL) for systems in found.values()]
    both = [100 * (statistics.fmean(one) - 1) for one in zip(*slower, strict=True)]
    less_between = {"arXiv": 5.6, "ShareGPT": 14.4}
    ratios = [_ratio("latency pushed, % more than pulled, both datasets", (25.5, 25.5), both, PUSH_NOTE)]
    for name, systems in found.items():
        between = [100 * (1 - one) for one in over(systems[PUSH], systems[PULL], BETWEEN)]
        waits = [
            point.each(partial(mean, of=STAGES["waiting for memory"]))
            for point in (systems[PUSH][-1], systems[PULL][-1])
        ]
        ratios += [
            _ratio(
                f"{name}: time between tokens pushed, % less than pulled",
                (less_between[name],) * 2,
                between,
                PUSH_NOTE,
            ),
            _ratio(
                f"{name}: waiting for memory to decode, pushed less pulled, s at the highest rate",
                "an additional 1.6x increase",
                [push - pull for push, pull in zip(*waits, strict=True)],
                "",
            ),
        ]
    return Figure(
        name="004-16",
        title="Keys and values pulled and pushed",
        x_label="requests/s",
        y_label="",
        panels=_panels(found),
        ratios=tuple(ratios),
        notes=(
            _assumed(effort),
            "Pushed, each layer travels while the next is computed, and the last one's time is all that is left, for "
            "links are taken to keep up.",
        ),
    )


def _panels(found: Found) -> tuple[Panel, ...]:
    """Of each dataset three: latency as a whole, until decoding can begin, and between tokens."""
    measures = {"latency": TOTAL, "time to first token": FIRST, "time between tokens": BETWEEN}
    return tuple(
        Panel(
            title=name,
            y_label=f"{measure}, P90, s",
            series=tuple(_by_rate(label, points, partial(high, of=of)) for label, points in systems.items()),
        )
        for name, systems in found.items()
        for measure, of in measures.items()
    )


def _ratios_13(name: str, theirs: float, systems: Mapping[str, Sequence[Point]]) -> Iterator[Ratio]:
    note = PROMPTS_NOTE if name == "arXiv" else MEMORY_NOTE
    vllm, pull, shared_ = systems[VLLM], systems[PULL], systems[SHARED]
    yield _ratio(f"{name}: latency, % less than vLLM's", (theirs, theirs), _less(pull, vllm), note)
    light = min(LIGHT, len(pull) - 1)
    at_light = f"{name}: latency at {pull[light].rate_per_s:g}/s, % less than vLLM's"
    yield _ratio(at_light, "-", _less([pull[light]], [vllm[light]]), "")
    chunked = _less(pull, systems[CHUNKED])
    yield _ratio(f"{name}: latency, % less than vLLM's with chunked prefill", "-", chunked, "")
    for label, other in (("vLLM", vllm), (PULL, pull)):
        ours = f"{name}: latency of two instances of distkv, % less than {label}'s"
        yield _ratio(ours, "-", _less(shared_, other), "")
    for who, points, label, of, most in (
        (VLLM, vllm, "first token", FIRST, "up to 12.3"),
        (VLLM, vllm, "token", BETWEEN, "up to 2.2"),
        (PULL, pull, "token", BETWEEN, "remains low"),
    ):
        yield _ratio(f"{name}: {who}'s time to a {label}, highest rate by lowest", most, _grown(points, of), "")


def _played(effort: Effort, say: Say, labels: Sequence[str]) -> Found:
    rates, draws = effort.pick((RATES_PER_S[0], RATES_PER_S[-1]), RATES_PER_S), effort.pick(2, DRAWS)
    cases = [(name, label, rate) for name in DATASETS for label in labels for rate in rates]
    found: dict[str, dict[str, list[Point]]] = {name: {label: [] for label in labels} for name in DATASETS}
    for place, (name, label, rate) in enumerate(cases):
        say(f"{name}, {label}, {rate:g}/s", place / len(cases))
        system, share = SYSTEMS[label]
        traces = [_trace(name, rate, share, effort, seed) for seed in range(draws)]
        found[name][label].append(Point(rate, tuple(system(trace) for trace in traces)))
    return found


def _trace(name: str, rate: float, share: float, effort: Effort, seed: int) -> list[TraceRequest]:
    """What arrives at so many times the rate."""
    count = max(4, round(rate * share * effort.pick(20.0, WINDOW_S)))
    return dataset(DATASETS[name], per_s=rate * share, count=count, seed=seed)


def _less(ours: Sequence[Point], other: Sequence[Point]) -> list[float]:
    """By how many per cent latency is shorter, by draw, mean over rates."""
    return [100 * (1 - one) for one in over(ours, other, TOTAL)]


def over(ours: Sequence[Point], other: Sequence[Point], of: Takes) -> list[float]:
    """How many times the other's, by draw, mean over rates."""
    ratios = [
        [mine / its for mine, its in zip(*(point.each(partial(high, of=of)) for point in pair), strict=True)]
        for pair in zip(ours, other, strict=True)
    ]
    return [statistics.fmean(of_draw) for of_draw in zip(*ratios, strict=True)]


def _grown(points: Sequence[Point], of: Takes) -> list[float]:
    """How many times that at the lowest rate it is at the highest, by draw."""
    low, top = (point.each(partial(high, of=of)) for point in (points[0], points[-1]))
    return [after / before for before, after in zip(low, top, strict=True)]


def _share(draw: Sequence[Stages], stage: str) -> float:
    """Of all seconds that requests take, per cent."""
    return 100 * mean(draw, STAGES[stage]) / mean(draw, TOTAL)


def _ratio(what: str, theirs: tuple[float, float] | str, draws: Sequence[float], note: str) -> Ratio:
    return mean_ratio(what, theirs, draws).explained(note)


def _by_rate(label: str, points: Sequence[Point], of: Callable[[Sequence[Stages]], float]) -> Series:
    return Series.of(label, [(point.rate_per_s, statistics.fmean(point.each(of))) for point in points])


def _assumed(effort: Effort) -> str:
    return ASSUMED.format(window_s=effort.pick(20.0, WINDOW_S), draws=effort.pick(2, DRAWS))
