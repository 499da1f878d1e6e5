"""000 Fig. 9 (§6.3): a request that outgrows its GPU borrows, or the service moves to an instance with two GPUs.

DistKV-LLM is simulated. vLLM computes by the same profile on one GPU until its memory is full; then an instance of two
is started, which gets the model from object storage, computes what there is again, and goes on.
"""

from __future__ import annotations

from msgspec.structs import replace

from distkv.control.performance.model import PerformanceModel
from distkv.sim.papers.distkv_llm.setups import SETUPS
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.sensitivity import FACTORS, specs_around
from distkv.sim.profiles.roofline import CHUNK_TOKENS
from distkv.sim.profiles.shapes import SHAPES
from distkv.sim.run import simulate
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest

MOST_VARIED = 10_000
"""Output tokens that are simulated again on hardware around the one that is assumed."""
KV_TOKENS = 108_000
"""Of one A100, as printed."""
LENGTHS = ((105_000, 5_000), (100_000, 10_000), (90_000, 20_000), (80_000, 30_000))
"""Prompt and output, as printed."""
FASTER = (3.5, 2.2, 1.6, 1.4)
"""Completion times, as printed."""
OVERHEAD = 45.0
"""Of migration, in times what communication costs DistKV-LLM, as printed."""
START_S = 265.0
STARTED_BYTES = SHAPES["llama2-70b"].weight_bytes
"""Anyscale, October 2023, "Loading Llama-2 70B 20x faster": 4 min 25 s to download LLaMA2-70B from S3 and to start an
engine with it on AWS p4de, which has 8 A100, before it was made faster."""


def figure_9(effort: Effort, say: Say) -> Figure:
    """Completion times by output length."""
    spec = replace(SETUPS[0].spec(), kv_tokens=KV_TOKENS)
    ours, theirs, ratios = list[tuple[float, float]](), list[tuple[float, float]](), list[Ratio]()
    computed = list[tuple[float, float]]()
    lengths = effort.pick(LENGTHS[:1], LENGTHS)
    implied_s = list[float]()
    tokens = printed_tokens()
    took_s = tokens * PerformanceModel(spec.profile).step_s(1, KV_TOKENS)
    said = (
        f"By the printed times themselves a migration takes as long as {tokens:,.0f} tokens, which is {took_s:,.0f} s "
        f"if each reads {KV_TOKENS // 1000}k tokens' keys: {SHAPES['llama2-7b'].weight_bytes / took_s / 1e6:.0f} MB/s, "
        "if all of that were the download."
    )
    for place, (prompt, output) in enumerate(lengths):
        say(f"{output} tokens", place / len(lengths))
        borrowing_s = pooled_s(spec, prompt, output)
        alone_s = computing_s(spec, prompt, output)
        ours.append((output, borrowing_s))
        computed.append((output, alone_s))
        theirs.append((output, alone_s + migration_s(spec)))
        implied_s.append(FASTER[place] * borrowing_s - alone_s)
        ratios.append(
            Ratio(
                what=f"time for {prompt // 1000}k + {output // 1000}k tokens with live migration, times DistKV-LLM's",
                theirs=(FASTER[place], FASTER[place]),
                ours=rounded((alone_s + migration_s(spec)) / borrowing_s),
                ours_range=_range(spec, prompt, output) if effort is Effort.FULL and output <= MOST_VARIED else None,
            )
        )
    note = (
        f"Theirs would be a migration of {min(implied_s):,.0f} to {max(implied_s):,.0f} s, if tokens take what they "
        f"take here; ours takes {migration_s(spec):,.0f} s, by how fast others got a model from S3. {said}"
    )
    ratios = [replace(one, note=note) for one in ratios]
    ratios.append(
        Ratio(
            what="overhead of migration, times that of communication",
            theirs=(OVERHEAD, OVERHEAD),
            ours=rounded(migration_s(spec) / communication_s(spec, *LENGTHS[0])),
            note="Ours is how long queries and partials are on the link, for 105k + 5k tokens; the text does not say "
            "for which lengths theirs is, nor whether what hides behind attention is counted.",
        )
    )
    return Figure(
        name="000-9",
        title="Live migration and borrowing, LLaMA2-7B, one A100 and one more",
        x_label="output tokens",
        y_label="time until the last token, s",
        panels=(
            Panel(
                title="prompts of 105k, 100k, 90k and 80k tokens",
                series=(
                    Series.of("vLLM, live migration", theirs),
                    Series.of("vLLM, computing", computed),
                    Series.of("DistKV-LLM", ours),
                ),
            ),
        ),
        ratios=tuple(ratios),
        notes=(
            "An A100 has memory for 108k tokens, as printed; our roofline says 111k. The link to S3 and the time to "
            "start an engine are those of another team's report of the same year; the paper does not say its own.",
        ),
    )


def printed_tokens() -> float:
    """How many tokens a migration takes as long as, by the first and the last printed time, if those before and after
    take the same: (FASTER - 1) (prompt's time + output tokens) = migration, for both."""
    (_, few), (_, many) = LENGTHS[0], LENGTHS[-1]
    return (many - few) / (1 / (FASTER[-1] - 1) - 1 / (FASTER[0] - 1))


def pooled_s(spec: SimSpec, prompt: int, output: int) -> float:
    """Until the last token of a request that borrows."""
    return simulate([TraceRequest(0.0, prompt, output)], spec).outcomes[0].times_s[-1]


def communication_s(spec: SimSpec, prompt: int, output: int) -> float:
    """How long queries of its steps and partials for them are on the link, in all layers."""
    steps = simulate([TraceRequest(0.0, prompt, output)], spec).counters.remote_steps
    link, model = spec.profile.links["host"], PerformanceModel(spec.profile)
    return steps * (spec.profile.layers * link.round_trip_s + model.carry_s(1))


def computing_s(spec: SimSpec, prompt: int, output: int) -> float:
    """What vLLM computes: on one GPU while that has memory, then on two."""
    one, two = PerformanceModel(spec.profile), _two(spec)
    decoding_s = sum(
        (one if tokens <= spec.kv_tokens else two).step_s(1, tokens) for tokens in range(prompt + 1, prompt + output)
    )
    return _prefill_s(one, prompt) + decoding_s


def migration_s(spec: SimSpec) -> float:
    """Until the instance with two GPUs has the model and has computed again what was there."""
    return START_S * SHAPES["llama2-7b"].weight_bytes / STARTED_BYTES + _prefill_s(_two(spec), spec.kv_tokens)


def _two(spec: SimSpec) -> PerformanceModel:
    assert spec.single is not None
    return PerformanceModel(spec.single.profile)


def _prefill_s(model: PerformanceModel, tokens: int) -> float:
    """Of a prompt, chunk by chunk."""
    starts = range(0, tokens, CHUNK_TOKENS)
    return sum(model.prefill_s(min(CHUNK_TOKENS, tokens - start), start) for start in starts)


def _range(spec: SimSpec, prompt: int, output: int) -> tuple[float, float]:
    """On hardware around the one that is assumed, storage and start included."""
    found = list[float]()
    for around in (spec, *specs_around(spec)):
        took_s = pooled_s(around, prompt, output)
        alone_s = computing_s(around, prompt, output)
        found += [(alone_s + times * migration_s(around)) / took_s for times in FACTORS]
    return rounded(min(found)), rounded(max(found))
