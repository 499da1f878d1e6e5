"""000 Fig. 7 (§6.1): throughput of the largest batch of requests of one length, and the longest that there can be.

vLLM-v1 is instances side by side, vLLM-v2 one instance over all GPUs; both by formulas. Requests that fit one instance
are decoded by DistKV-LLM as by vLLM-v1, for then nothing is borrowed; longer ones are played to the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from distkv.sim.baselines.throughput import largest_batch, separate_tokens_per_s
from distkv.sim.outcome import Outcome
from distkv.sim.papers.distkv_llm.setups import SETUPS, Setup
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.sensitivity import specs_around
from distkv.sim.run import simulate
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest

SHORT = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
POOLS = (1.5, 1.95, 3.9, 7.8, 15.5, 31.0)
"""Longer contexts, in pools of one instance."""
GAP_S = 1.0
"""Between two arrivals: two heartbeats, so that each is sent where the one before is not."""
STEP_S = 0.04
"""About what a step takes that attends to a whole A100 of keys."""
PLAYED = 5
"""Rows of Table 2 that are simulated: all but that with 32 instances."""
MOST_VARIED = 2
"""Instances that a ratio is played to again on hardware around the one that is assumed."""
THEIRS = (1.4, 5.3)
"""Over vLLM-v2, as printed."""
SHARES = (0.99, 0.98, 0.97, 0.96, 0.95, 0.9)
"""Of all memory, tried for one request."""


def figure_7(effort: Effort, say: Say) -> Figure:
    """Throughput by context length, for each setup."""
    setups = effort.pick(SETUPS[:1], SETUPS[:PLAYED])
    panels, ratios = list[Panel](), list[Ratio]()
    for place, setup in enumerate(setups):
        say(setup.title, place / len(setups))
        panel, found = _of_setup(setup, effort)
        panels.append(panel)
        ratios += found
    return Figure(
        name="000-7",
        title="Throughput of the largest batch of requests of one length",
        x_label="context tokens",
        y_label="output tokens/s",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            "vLLM-v2 has two things that its measurements in the paper had not: keys and values of all GPUs but one "
            "set of weights, and no cost of its host for each step (the paper's ran by Ray). The largest batch fills "
            "the memory of any system with keys, and reading them, not weights, is most of a step: so the model leaves "
            "little to win or lose, where the paper has 1.4 to 5.3.",
            "32 GPUs were not played. What is simulated for more than two instances is not played on other hardware.",
            "Hosts are linked by InfiniBand of 400 Gb/s, which is assumed. A batch is as large as memory allows, of "
            "however many sequences.",
        ),
    )


def lengths(setup: Setup, effort: Effort) -> list[int]:
    """Of contexts: some that fit one instance, then some that need more than one."""
    spec = setup.spec()
    pool = spec.num_blocks * spec.profile.block_tokens
    longer = [round(times * pool) for times in POOLS if times < setup.instances]
    short = [tokens for tokens in SHORT if tokens < pool]
    return [*effort.pick(short[:1], short), pool, *effort.pick(longer[-1:], longer)]


def _of_setup(setup: Setup, effort: Effort) -> tuple[Panel, list[Ratio]]:
    spec = setup.spec()
    chosen = lengths(setup, effort)
    v1 = [(tokens, separate_tokens_per_s(spec.profile, spec.kv_tokens, tokens, setup.instances)) for tokens in chosen]
    v2 = [(tokens, single_tokens_per_s(spec, setup.stages, tokens)) for tokens in chosen]
    ours = [(tokens, pooled_tokens_per_s(spec, tokens)) for tokens in chosen]
    panel = Panel(
        title=setup.title,
        series=(
            Series.of("vLLM-v1", [point for point in v1 if point[1]]),
            Series.of("vLLM-v2", [point for point in v2 if point[1]]),
            Series.of("DistKV-LLM", [point for point in ours if point[1]]),
        ),
        x_log=True,
        y_log=True,
    )
    return panel, [*_ratios(setup, spec, chosen, effort), _least(setup, ours, v2)]


def _ratios(setup: Setup, spec: SimSpec, chosen: list[int], effort: Effort) -> Iterator[Ratio]:
    longest = longest_tokens(spec, effort)
    yield Ratio(
        what=f"{setup.title}: longest context, times that of vLLM-v1",
        theirs=(2.0, 19.0),
        ours=rounded(longest / spec.kv_tokens),
        note=_context_note(setup, longest, spec),
    )
    fitting = [tokens for tokens in chosen if tokens <= spec.kv_tokens]
    for tokens in (fitting[0], fitting[-1], chosen[-1]):
        ratio = over_single(spec, setup.stages, tokens)
        yield Ratio(
            what=f"{setup.title}: tokens/s at {tokens / 1000:,.0f}k, times those of vLLM-v2",
            theirs=THEIRS,
            ours=rounded(ratio),
            ours_range=_range(spec, setup.stages, tokens)
            if effort is Effort.FULL and (tokens <= spec.kv_tokens or setup.instances <= MOST_VARIED)
            else None,
            note=_single_note(ratio, tokens, spec, setup),
        )
    step_s, wanted = longer_s(spec, setup.stages, fitting[0]), THEIRS[0]
    if step_s > 0:
        yield Ratio(
            what=f"{setup.title}: by how many ms a step of vLLM-v2 would have to take longer for {wanted:g} times at "
            f"{fitting[0] / 1000:,.0f}k",
            theirs="-",
            ours=rounded(1000 * step_s),
        )


def _least(setup: Setup, ours: list[tuple[int, float]], v2: list[tuple[int, float]]) -> Ratio:
    """Of all lengths."""
    ratio, tokens = min((mine / theirs, tokens) for (tokens, mine), (_, theirs) in zip(ours, v2, strict=True) if theirs)
    return Ratio(
        what=f"{setup.title}: the least of these, at {tokens / 1000:,.0f}k",
        theirs=THEIRS,
        ours=rounded(ratio),
        note="Fewer requests of this length fit than there are instances: some only lend and serve, while one instance "
        "over all GPUs has all of them at work.",
    )


def _context_note(setup: Setup, longest: int, spec: SimSpec) -> str:
    times = longest / spec.kv_tokens
    if times < 2:
        return "Two equal pools are two times one; each instance keeps room for the block that a step writes."
    if times > 19:
        return f"The paper went up to 1,900K tokens; {setup.instances} pools hold more."
    return ""


def _single_note(ratio: float, tokens: int, spec: SimSpec, setup: Setup) -> str:
    if ratio >= 1.4:
        return "" if ratio <= 5.3 else "A pipeline attends for one sequence in one stage at a time."
    if tokens > spec.kv_tokens:
        return (
            "With one long request for several instances, all but the debtor read their weights for nothing, and one "
            "instance over all GPUs divides every layer."
        )
    return "Keys of a full memory take most of a step and are read as fast either way."


def single_tokens_per_s(spec: SimSpec, stages: int, tokens: int) -> float:
    """vLLM-v2's throughput of its largest batch."""
    assert spec.single is not None
    return separate_tokens_per_s(spec.single.profile, spec.single.kv_tokens, tokens, stages=stages)


def pooled_tokens_per_s(spec: SimSpec, tokens: int) -> float:
    """DistKV-LLM's throughput of the largest batch that decodes at once."""
    if tokens <= spec.kv_tokens:
        return separate_tokens_per_s(spec.profile, spec.kv_tokens, tokens, spec.instances)
    batch = spec.instances * spec.kv_tokens // tokens
    output = round(1.5 * batch * GAP_S / STEP_S) + 50
    trace = [TraceRequest(GAP_S * place, tokens - output, output) for place in range(batch)]
    outcomes = [one for one in simulate(trace, spec).outcomes if not one.failed]
    begin_s, end_s = most_at_once([(_at_s(one, 0), _at_s(one, -1)) for one in outcomes])
    within = sum(begin_s < _at_s(one, token) <= end_s for one in outcomes for token in range(len(one.times_s)))
    return within / (end_s - begin_s)


def most_at_once(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """The longest time in which as many of these spans of time overlap as ever do."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    found, running = list[tuple[int, float, tuple[float, float]]](), 0
    for (at, change), (then, _) in pairwise(changes):
        running += change
        found.append((running, then - at, (at, then)))
    return max(found)[2]


def _at_s(outcome: Outcome, token: int) -> float:
    """When a token came, from the beginning of the trace."""
    return outcome.request.arrival_s + outcome.times_s[token]


def longest_tokens(spec: SimSpec, effort: Effort) -> int:
    """The longest context that the cluster serves, to a hundredth of its memory."""
    for share in effort.pick(SHARES[-1:], SHARES):
        tokens = round(share * spec.instances * spec.kv_tokens)
        if not simulate([TraceRequest(0.0, tokens - 2, 2)], spec).outcomes[0].failed:
            return tokens
    return spec.kv_tokens


def over_single(spec: SimSpec, stages: int, tokens: int) -> float:
    """DistKV-LLM's throughput, times vLLM-v2's."""
    return pooled_tokens_per_s(spec, tokens) / single_tokens_per_s(spec, stages, tokens)


def longer_s(spec: SimSpec, stages: int, tokens: int) -> float:
    """How much longer a step of vLLM-v2's largest batch would have to take for the least ratio that is printed; less
    than 0 if it takes longer already."""
    assert spec.single is not None
    batch = largest_batch(spec.single.profile, spec.single.kv_tokens, tokens)
    return THEIRS[0] * batch / pooled_tokens_per_s(spec, tokens) - batch / single_tokens_per_s(spec, stages, tokens)


def _range(spec: SimSpec, stages: int, tokens: int) -> tuple[float, float]:
    """On hardware around the one that is assumed, the same for both."""
    found = [over_single(one, stages, tokens) for one in (spec, *specs_around(spec))]
    return rounded(min(found)), rounded(max(found))
