"""001 Fig. 10 (§7.3): tokens each second and latency by the rate of requests, of traces of Table 1."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distkv.sim.datasets.draw import dataset
from distkv.sim.papers.clusters import Reached, cluster, reach, reach_by_vllm
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded

OURS, VLLM_MULTI = "Infinite-LLM", "vLLM-multi"
NOT_LENT = "the same, nothing lent"
MULTI_NOTE = (
    "Most of what is gained is not by lending (the next row): the state machines keep room for what requests will "
    "generate, and let those pass that fit beside a document that waits, where vLLM serves in order and computes again."
)


class Setup(msgspec.Struct, frozen=True):
    """A trace on instances of a built-in profile. rates_per_s: of arrivals. window_s: for so
    long requests arrive."""

    trace: str
    profile: str
    instances: int
    rates_per_s: tuple[float, ...]
    window_s: float

    @property
    def title(self) -> str:
        return f"trace {self.trace.removeprefix('infinite-')}, {self.instances} x {self.profile.removeprefix('a100-')}"


SHORT = tuple(
    Setup(
        f"infinite-{trace}",
        "a100-llama2-7b",
        instances,
        (instances * per_s / 2, instances * per_s, 2 * instances * per_s),
        80.0,
    )
    for instances in (2, 4)
    for trace, per_s in ((0, 2.0), (1, 3.0), (2, 4.0))
)


def figure_10a(effort: Effort, say: Say) -> Figure:
    """Traces 0 to 2, against instances side by side."""
    setups = effort.pick((msgspec.structs.replace(SHORT[2], rates_per_s=(4.0,), window_s=10.0),), SHORT)
    return _figure(
        "001-10a",
        "Infinite-LLM and vLLM-multi",
        setups,
        (VLLM_MULTI, OURS, NOT_LENT),
        (1.35, 1.73),
        MULTI_NOTE,
        (
            "Models and numbers of instances are not said: 2 and 4 of LLaMA2-7B, of one GPU each. vLLM-multi batches "
            "by vLLM's rules and sends requests where most room is for each; the state machines, with nothing lent, "
            "do so by predicted time.",
        ),
        say,
    )


def _figure(
    name: str,
    title: str,
    setups: Sequence[Setup],
    systems: tuple[str, ...],
    theirs: tuple[float, float],
    note: str,
    notes: tuple[str, ...],
    say: Say,
) -> Figure:
    panels, ratios = list[Panel](), list[Ratio]()
    for index, setup in enumerate(setups):
        say(setup.title, index / len(setups))
        found = {system: _reached(setup, system) for system in systems}
        panels += [
            Panel(title=setup.title, series=_series(setup, found, "tokens_per_s")),
            Panel(title=setup.title, series=_series(setup, found, "per_token_s"), y_label="latency, s per token"),
        ]
        most = {system: max(one.tokens_per_s for one in many) for system, many in found.items()}
        ratio = Ratio(
            what=f"{setup.title}: most tokens/s, times those of {systems[0]}",
            theirs=theirs,
            ours=rounded(most[OURS] / most[systems[0]]),
            note=note,
        )
        ratios.append(ratio)
        if NOT_LENT in most:
            ratios.append(
                Ratio(
                    what=f"{setup.title}: most tokens/s, times those of {NOT_LENT}",
                    theirs="-",
                    ours=rounded(most[OURS] / most[NOT_LENT]),
                )
            )
    return Figure(
        name=name,
        title=title,
        x_label="requests/s",
        y_label="tokens/s",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            *notes,
            "Tokens are counted while requests arrive, for "
            f"{min(one.window_s for one in setups):,.0f} to {max(one.window_s for one in setups):,.0f} s; where "
            "they still grow with the highest rate, nothing is at its limit. One draw of each trace; no range, for "
            "each is a simulation.",
        ),
    )


def _reached(setup: Setup, system: str) -> list[Reached]:
    """At each rate."""
    spec = cluster(setup.profile, setup.instances, "contract" if system == OURS else "none")
    play = reach_by_vllm if system == VLLM_MULTI else reach
    return [
        play(dataset(setup.trace, per_s=rate, count=round(rate * setup.window_s)), spec) for rate in setup.rates_per_s
    ]


def _series(setup: Setup, found: dict[str, list[Reached]], field: str) -> tuple[Series, ...]:
    return tuple(
        Series.of(system, [(rate, getattr(one, field)) for rate, one in zip(setup.rates_per_s, many, strict=True)])
        for system, many in found.items()
    )
