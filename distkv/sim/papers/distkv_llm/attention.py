"""000 Fig. 11 and 12 (§6.5): what DistAttention adds to attention, and what is gained by moving queries, not keys."""

from __future__ import annotations

from functools import partial

from distkv.control.performance.model import PerformanceModel
from distkv.sim.baselines.attention import dist_attention_s, tensor_parallel_s
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.sensitivity import gpu_range, profile_range
from distkv.sim.profiles.built_in import built_in
from distkv.sim.profiles.hardware import GPUS, Gpu, NetworkName
from distkv.sim.profiles.shapes import SHAPES, Shape
from distkv.wire.messages.profile import LinkKind, Profile

CONTEXTS = (300_000, 400_000, 500_000, 600_000)
MODELS = ("llama2-7b", "llama2-13b", "llama2-70b")
OFFLOADED = (1_000, 5_000, 10_000, 100_000)
A100 = GPUS["a100"]
MICRO = 1e6


def figure_11(effort: Effort, say: Say) -> Figure:
    """One layer's attention of one sequence on 8 GPUs: heads divided, or the sequence, between two instances of 4."""
    say("attention of one layer", 0.0)
    panels = [
        Panel(
            title=shape.name,
            series=(
                Series.of("TP8 attention", [(at, MICRO * tensor_parallel_s(A100, shape, at, 8)) for at in CONTEXTS]),
                Series.of("2xTP4 DistAttention", [(at, MICRO * _shared_s(A100, shape, at)) for at in CONTEXTS]),
            ),
        )
        for shape in map(SHAPES.__getitem__, MODELS)
    ]
    paper = SHAPES["llama2-13b"]
    ratios = [
        Ratio(
            what=f"latency that DistAttention adds at {tokens // 1000}K, % of TP8 attention",
            theirs=(5.0, 10.0),
            ours=rounded(_added(A100, shape=paper, tokens=tokens)),
            ours_range=gpu_range(partial(_added, shape=paper, tokens=tokens), A100),
            note="Ours is queries, partials and one more kernel, which merges them, all of one layer. They also count "
            "slicing and concatenating of tensors, which kernels here do as they read and write.",
        )
        for tokens in (CONTEXTS[0], CONTEXTS[-1])
    ]
    return Figure(
        name="000-11",
        title="Attention of one layer over 8 A100, by context length",
        x_label="context tokens",
        y_label="latency, us",
        panels=tuple(panels),
        ratios=(
            *ratios,
            Ratio(
                what="added latency at 600K, times that at 300K",
                theirs="almost constant",
                ours=rounded(_added_s(A100, paper, CONTEXTS[-1]) / _added_s(A100, paper, CONTEXTS[0])),
            ),
        ),
        notes=(
            "The text names no model; ratios are of LLaMA2-13B, whose attention over 600K tokens takes the 0.9 ms "
            "that their axis ends at. All eight GPUs are of one host, with NVLink between them.",
        ),
    )


def figure_12(effort: Effort, say: Say) -> Figure:
    """Attention to rBlocks that lie elsewhere: queries travel, or keys and values do."""
    say("remote and local compute", 0.0)
    name = "a100-llama2-7b"
    networks: tuple[tuple[str, LinkKind, NetworkName], ...] = (
        ("NVLink", "host", "infiniband"),
        ("InfiniBand, 400 Gb/s", "network", "infiniband"),
        ("Ethernet, 125 MB/s", "network", "ethernet"),
    )
    panels, ratios = list[Panel](), list[Ratio]()
    for title, link, network in networks:
        profile = built_in(name, network=network)
        model = PerformanceModel(profile)
        panels.append(
            Panel(
                title=title,
                series=(
                    Series.of("remote compute", [(at, MICRO * _remote_s(model, at, link)) for at in OFFLOADED]),
                    Series.of("local compute", [(at, MICRO * _local_s(model, at, link)) for at in OFFLOADED]),
                ),
                x_log=True,
                y_log=True,
            )
        )
        for tokens in (OFFLOADED[0], OFFLOADED[-1]):
            ratios.append(
                Ratio(
                    what=f"{title}: local compute of {tokens // 1000}K tokens, times remote compute",
                    theirs="significantly higher",
                    ours=rounded(_times(profile, tokens, link)),
                    ours_range=profile_range(partial(_times, tokens=tokens, link=link), profile),
                )
            )
    return Figure(
        name="000-12",
        title="One decode step's attention to offloaded tokens, LLaMA2-7B on A100",
        x_label="offloaded context tokens",
        y_label="latency, us",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            "The text names neither model nor network. All 32 layers are counted; over NVLink that gives the range of "
            "their axis, 1 ms at 1K and 100 ms and more at 100K.",
        ),
    )


def _shared_s(gpu: Gpu, shape: Shape, tokens: int) -> float:
    return dist_attention_s(gpu, shape, tokens, 2, 4)


def _added_s(gpu: Gpu, shape: Shape, tokens: int) -> float:
    return _shared_s(gpu, shape, tokens) - tensor_parallel_s(gpu, shape, tokens, 8)


def _added(gpu: Gpu, shape: Shape, tokens: int) -> float:
    """In per cent."""
    return 100 * _added_s(gpu, shape, tokens) / tensor_parallel_s(gpu, shape, tokens, 8)


def _remote_s(model: PerformanceModel, tokens: int, link: LinkKind) -> float:
    return model.remote_s(tokens, link=link, busy=False)


def _local_s(model: PerformanceModel, tokens: int, link: LinkKind) -> float:
    return model.fetch_s(1, tokens, link=link)


def _times(profile: Profile, tokens: int, link: LinkKind) -> float:
    model = PerformanceModel(profile)
    return _local_s(model, tokens, link) / _remote_s(model, tokens, link)
