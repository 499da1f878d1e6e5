"""Seconds of one layer's attention for the next token of one sequence, over GPUs of a host (001 Fig. 11, 000 Fig. 11).

Each reads all keys and values once, each GPU its part of them; they differ in what travels. Tensor parallelism divides
heads and adds up hidden states. DistAttention divides the sequence: queries go out, partials come back. RingAttention
divides the sequence too, but keys and values travel to the query, from neighbour to neighbour, while attention over
what has arrived is computed.
"""

from __future__ import annotations

from distkv.sim.profiles.hardware import LAYER_KERNELS, Gpu
from distkv.sim.profiles.roofline import Instance
from distkv.sim.profiles.shapes import Shape


def tensor_parallel_s(gpu: Gpu, shape: Shape, tokens: int, gpus: int) -> float:
    """Heads divided among `gpus`, then an all-reduce of one row of hidden states."""
    return _local_s(gpu, shape, tokens, gpus) + _instance(gpu, shape, gpus).all_reduce_s(1)


def dist_attention_s(gpu: Gpu, shape: Shape, tokens: int, instances: int, gpus_each: int = 1) -> float:
    """The sequence divided evenly among `instances`, heads among the GPUs of each, with their all-reduce. The debtor
    merges the partials of all others, which arrive by its own link."""
    one = _instance(gpu, shape, gpus_each)
    part_s = _local_s(gpu, shape, tokens / instances, gpus_each) + one.all_reduce_s(1)
    if instances == 1:
        return part_s
    link = one.link(gpu.nvlink)
    travelling = (instances - 1) * (one.query_bytes + one.partial_bytes)
    return part_s + link.round_trip_s + travelling / link.bytes_per_s + _kernel_s(gpu)


def ring_attention_s(gpu: Gpu, shape: Shape, tokens: int, gpus: int) -> float:
    """The sequence divided evenly among `gpus`; keys and values of each part reach the query's GPU in as many rounds,
    of which each takes as long as its transfer or its attention, whichever is longer."""
    part = tokens / gpus
    attention_s = _local_s(gpu, shape, part, 1)
    transfer_s = gpu.nvlink.round_trip_s / 2 + part * shape.kv_bytes / gpu.nvlink.bytes_per_s
    return attention_s + (gpus - 1) * max(attention_s, transfer_s)


def _local_s(gpu: Gpu, shape: Shape, tokens: float, gpus: int) -> float:
    """Attention over what lies on `gpus` that share its heads."""
    return _kernel_s(gpu) + tokens * shape.kv_bytes / (gpus * gpu.hbm_bytes_per_s)


def _kernel_s(gpu: Gpu) -> float:
    return gpu.layer_s / LAYER_KERNELS


def _instance(gpu: Gpu, shape: Shape, gpus: int) -> Instance:
    return Instance(gpu=gpu, shape=shape, tensor_parallel=gpus, network=gpu.network)
