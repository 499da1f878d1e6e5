"""001 Fig. 11 (§7.4): one layer's attention of LLaMA2-13B over four GPUs, by what travels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from distkv.sim.baselines.attention import dist_attention_s, ring_attention_s, tensor_parallel_s
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.sensitivity import gpu_range
from distkv.sim.profiles.hardware import GPUS, Gpu
from distkv.sim.profiles.shapes import SHAPES

CONTEXTS = tuple(1024 * 2**power for power in range(2, 9))
GPUS_USED = 4
A100, SHAPE = GPUS["a100"], SHAPES["llama2-13b"]
NCCL_S = 26e-6
"""An all-reduce of 4 to 8 KB by NCCL (NVIDIA/nccl, issue 1453, on H100). Profiles have vLLM's own kernel, which takes
half of that (vllm-project/vllm, pull request 2192)."""
MICRO = 1e6
Attention = Callable[[Gpu, int], float]
"""Seconds, by GPU and context tokens."""
TP_BAND, RING_BAND = (1.01, 1.25), (7.7, 19.8)
TP_NOTE = (
    "Both read the same keys and exchange once, for 12 to 13 us; DistAttention has the kernel besides that merges "
    "partials. It is ahead where the all-reduce is NCCL's: the next rows."
)
RING_NOTE = (
    "The ring's time is that of its transfers: 7.4 times that of reading the same keys from memory, three times over."
)


def figure_11(effort: Effort, say: Say) -> Figure:
    """Latency of DistAttention, of heads divided among GPUs (TP), and of RingAttention."""
    say("attention of one layer", 0.0)
    kinds: tuple[tuple[str, Attention], ...] = (
        ("DistAttention", _dist_s),
        ("TP", _tp_s),
        ("TP, all-reduce by NCCL", _nccl_s),
        ("RingAttention", _ring_s),
    )
    series = [Series.of(label, [(at, MICRO * one(A100, at)) for at in CONTEXTS]) for label, one in kinds]
    ratios = (
        [_ratio("TP", _tp_s, at, TP_BAND, TP_NOTE) for at in (CONTEXTS[0], CONTEXTS[-1])]
        + [_ratio("TP with an all-reduce by NCCL", _nccl_s, at, TP_BAND) for at in (CONTEXTS[0], CONTEXTS[-1])]
        + [_ratio("RingAttention", _ring_s, at, RING_BAND, RING_NOTE) for at in (CONTEXTS[0], 32 * 1024, CONTEXTS[-1])]
    )
    return Figure(
        name="001-11",
        title="Attention of one layer of LLaMA2-13B over 4 A100, by context length",
        x_label="context tokens",
        y_label="latency, us",
        panels=(Panel(title="one sequence, one token", series=tuple(series), x_log=True, y_log=True),),
        ratios=tuple(ratios),
        notes=(
            "The four GPUs are of one host, with NVLink between them, and each is an instance of DistAttention. "
            "RingAttention overlaps its transfers with attention, as its authors mean it to.",
        ),
    )


def _ratio(name: str, other: Attention, tokens: int, theirs: tuple[float, float], note: str = "") -> Ratio:
    times = partial(_times, other, tokens=tokens)
    found = Ratio(
        what=f"latency of {name} at {tokens // 1024}K, times DistAttention's",
        theirs=theirs,
        ours=rounded(times(A100)),
        ours_range=gpu_range(times, A100),
    )
    return found.explained(note)


def _times(other: Attention, gpu: Gpu, *, tokens: int) -> float:
    return other(gpu, tokens) / _dist_s(gpu, tokens)


def _dist_s(gpu: Gpu, tokens: int) -> float:
    return dist_attention_s(gpu, SHAPE, tokens, GPUS_USED)


def _tp_s(gpu: Gpu, tokens: int) -> float:
    return tensor_parallel_s(gpu, SHAPE, tokens, GPUS_USED)


def _nccl_s(gpu: Gpu, tokens: int) -> float:
    return tensor_parallel_s(replace(gpu, all_reduce_s={GPUS_USED: NCCL_S}), SHAPE, tokens, GPUS_USED)


def _ring_s(gpu: Gpu, tokens: int) -> float:
    return ring_attention_s(gpu, SHAPE, tokens, GPUS_USED)
