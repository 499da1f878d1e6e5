"""001 Fig. 10 (§7.3): tokens each second and latency by the rate of requests, of traces of Table 1."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from distkv.sim.datasets.draw import REQUESTS as ALL
from distkv.sim.datasets.draw import dataset
from distkv.sim.papers.clusters import cluster, reach, reach_by_vllm
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, within
from distkv.sim.papers.infinite_llm.context import SETUPS as LONG_SETUPS
from distkv.sim.papers.rising import Rising, System, most_ratio, offered_s, rise
from distkv.sim.profiles import built_in as named
from distkv.sim.trace import TraceRequest

OURS, VLLM_MULTI, VLLM_SINGLE = "Infinite-LLM", "vLLM-multi", "vLLM-single"
NOT_LENT, OUR_RULES = "the same, nothing lent", "vLLM-single by Infinite-LLM's rules"
MULTI_NOTE = (
    "What is gained is not by lending (the next row): the state machines keep room for what requests will generate, "
    "and let those pass that fit beside a document that waits, where vLLM serves in order and computes again."
)
HOP_NOTE = "Hidden states of each chunk cross the Ethernet between the stages of the one instance."
FEW_NOTE = (
    "All memory holds fewer requests than there are instances: so many compute a prompt of their own, and the others "
    "attend for them at most, where one instance over all GPUs has all of them compute each prompt."
)
SINGLE_NOTE = (
    "Prompts are nearly all of these requests, and computing them is arithmetic, which keeps GPUs as busy where "
    "matrices are divided among them; then each instance reads its weights for the few requests that its memory holds, "
    "and one instance over all GPUs once for all."
)
MULTI_BAND, SINGLE_BAND = (1.35, 1.73), (1.4, 3.4)
SHORT_DRAWS = 4
DRAWS, MOST_DRAWN = 3, 4
"""Of a trace, where there are so many instances at most; of more one, for they take minutes."""
LOADS = (0.5, 1.0)
"""Of what all GPUs of a cluster can compute and read at most."""
LONG_REQUESTS = 20
"""In the time of a play at load 1. All pools together hold four to seven requests of the mean length, whatever the
setup."""


class Setup(msgspec.Struct, frozen=True):
    """A trace on instances of a built-in profile. rates_per_s: of arrivals. window_s: for so long requests arrive.
    draws: of the trace."""

    trace: str
    profile: str
    instances: int
    rates_per_s: tuple[float, ...]
    window_s: float
    draws: int = 1

    @property
    def title(self) -> str:
        return f"trace {self.trace.removeprefix('infinite-')}, {self.instances} x {self.profile.removeprefix('a100-')}"

    def requests(self, rate_per_s: float, seed: int) -> list[TraceRequest]:
        """Of a draw, at a rate."""
        return dataset(self.trace, per_s=rate_per_s, count=max(2, round(rate_per_s * self.window_s)), seed=seed)


SHORT = tuple(
    Setup(
        f"infinite-{trace}",
        "a100-llama2-7b",
        instances,
        (instances * per_s / 2, instances * per_s, 2 * instances * per_s),
        80.0,
        SHORT_DRAWS,
    )
    for instances in (2, 4)
    for trace, per_s in ((0, 2.0), (1, 3.0), (2, 4.0))
)


def figure_10a(effort: Effort, say: Say) -> Figure:
    """Traces 0 to 2, against instances side by side."""
    setups = effort.pick((replace(SHORT[2], rates_per_s=(4.0,), window_s=10.0, draws=1),), SHORT)
    return _figure(
        "001-10a",
        (OURS, VLLM_MULTI, NOT_LENT),
        setups,
        MULTI_BAND,
        _multi_note,
        (
            "Models and numbers of instances are not said: 2 and 4 of LLaMA2-7B, of one GPU each. vLLM-multi batches "
            "by vLLM's rules; chunks of prompts fill steps or are kept short, and requests are sent where most room is "
            "for each or where fewest are: what generates most at each rate counts. The state machines, with nothing "
            "lent, dispatch by predicted time.",
        ),
        say,
    )


def figure_10b(effort: Effort, say: Say) -> Figure:
    """Traces 3 to 8, against one instance over all GPUs."""
    setups = effort.pick(
        (replace(long_setup(0), rates_per_s=(0.2,), window_s=20.0, draws=1),), tuple(map(long_setup, range(6)))
    )
    held = ", ".join(f"{_held(one):.1f}" for one in setups)
    return _figure(
        "001-10b",
        (OURS, VLLM_SINGLE, OUR_RULES),
        setups,
        SINGLE_BAND,
        _single_note,
        (
            "Models and GPUs are those that 000 has for the same ranges of lengths. vLLM-single batches by vLLM's "
            "rules, with chunks of prompts that fill steps or are kept short, whichever generates more; it is "
            "tensor-parallel within a host, and pipelined over Ethernet of 125 MB/s between hosts.",
            f"Rates are {', '.join(f'{load:g}' for load in LOADS)} times what all GPUs can compute and read at most. "
            "An output has 0.6 % of the tokens of its request, as documents of 004 have. All memory holds so many "
            f"requests of the mean length, trace by trace: {held}.",
        ),
        say,
    )


def long_setup(row: int) -> Setup:
    """That of trace 3 + row."""
    of = LONG_SETUPS[row]
    name = f"infinite-{row + 3}"
    request_s = offered_s(dataset(name), of.spec()) / ALL
    return Setup(
        name,
        of.profile,
        of.instances,
        tuple(load / request_s for load in LOADS),
        LONG_REQUESTS * request_s,
        DRAWS if of.instances <= MOST_DRAWN else 1,
    )


def _multi_note(setup: Setup, ratio: Ratio) -> str:
    return MULTI_NOTE if ratio.differs else ""


def _single_note(setup: Setup, ratio: Ratio) -> str:
    if not ratio.differs:
        return ""
    if ratio.ours > SINGLE_BAND[1]:
        return HOP_NOTE
    return FEW_NOTE if _held(setup) < setup.instances else SINGLE_NOTE


def _held(setup: Setup) -> float:
    """How many requests of the mean length the memory of all instances holds."""
    memory = setup.instances * named.kv_tokens(setup.profile)
    return memory / statistics.fmean(one.num_tokens for one in dataset(setup.trace))


def _figure(
    name: str,
    labels: tuple[str, str, str],
    setups: Sequence[Setup],
    theirs: tuple[float, float],
    note: Callable[[Setup, Ratio], str],
    notes: tuple[str, ...],
    say: Say,
) -> Figure:
    """labels: ours, the other, and one that says where the difference comes from."""
    panels, ratios = list[Panel](), list[Ratio]()
    for index, setup in enumerate(setups):
        systems = {label: _systems(setup)[label] for label in labels}
        heard = within(say, setup.title, index, len(setups))
        found = rise(systems, setup.rates_per_s, setup.draws, setup.requests, heard)
        panels += [
            Panel(title=setup.title, series=_series(found, "tokens_per_s")),
            Panel(title=setup.title, series=_series(found, "per_token_s"), y_label="latency, s per token"),
        ]
        ours, other, why = (found[label] for label in labels)
        most = f"{setup.title}: most tokens/s, times those of"
        ratio = most_ratio(f"{most} {labels[1]}", theirs, ours, other)
        because = most_ratio(f"{most} {labels[2]}", "-", ours, why)
        ratios += [replace(ratio, note=note(setup, ratio)), because]
    windows = (f"{most(one.window_s for one in setups):,.0f}" for most in (min, max))
    return Figure(
        name=name,
        title=" and ".join(labels[:2]),
        x_label="requests/s",
        y_label="tokens/s",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            *notes,
            f"Tokens are counted while requests arrive, for {' to '.join(dict.fromkeys(windows))} s; where they "
            "still grow with the highest rate, nothing is at its limit. Ratios without an interval are of one draw; no "
            "range, for each is a simulation.",
        ),
    )


def _systems(setup: Setup) -> Mapping[str, System]:
    ours = cluster(setup.profile, setup.instances, "contract")
    apart = replace(ours, policy="none")
    single = cluster(setup.profile, setup.instances, "single")
    return {
        OURS: partial(reach, ours),
        VLLM_MULTI: partial(reach_by_vllm, apart),
        NOT_LENT: partial(reach, apart),
        VLLM_SINGLE: partial(reach_by_vllm, single),
        OUR_RULES: partial(reach, single),
    }


def _series(found: Mapping[str, Rising], field: str) -> tuple[Series, ...]:
    return tuple(one.by_rate(label, field) for label, one in found.items())
