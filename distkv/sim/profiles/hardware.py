"""GPUs and links, as data sheets and other people's measurements have them.

Sources, by the names in the comments below:
- sheet: NVIDIA's data sheets of A100 80GB SXM, H100 SXM and H200 SXM; dense figures.
- mamf: github.com/stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS": measured by torch.
- gpt-fast: github.com/pytorch-labs/gpt-fast, README: LLaMA2 on 8 A100-80GB, one sequence, by tensor-parallel width.
- sgl-2688, sgl-2904: pull requests of sgl-project/sglang that time small all-reduces on A100 and on H100.
- nccl-149, nccl-1442: issues of NVIDIA/nccl-tests and NVIDIA/nccl in which its maintainers say what links reach.
- nccl-214: an issue of NVIDIA/nccl-tests with `sendrecv_perf` between two hosts over InfiniBand.
- FA2, FA3: FlashAttention-2 (arXiv 2307.08691) and -3 (arXiv 2407.08608), abstracts.
- 001, 004: Infinite-LLM and KVDirect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

NetworkName = Literal["infiniband", "ethernet"]


class LinkClass(msgspec.Struct, frozen=True, kw_only=True):
    """What a link does in one direction. shared: it belongs to a host, not to each of its GPUs."""

    round_trip_s: float  #: a small message there, and one back
    bytes_per_s: float  #: of messages
    read_bytes_per_s: float  #: of scattered blocks that are read
    shared: bool


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, and the NVLink between those of a host. *_per_s: what programs reach, not what is printed."""

    name: str
    memory_bytes: float
    flops_per_s: float  #: of dense bfloat16 matrix products
    attention_flops_per_s: float  #: of attention over many queries
    hbm_bytes_per_s: float
    layer_s: float  #: of a decoder layer besides reading weights: launches, gaps, norms, what is not a matrix product
    all_reduce_s: Mapping[int, float]  #: GPUs → seconds of an all-reduce of a few kilobytes
    nvlink: LinkClass
    network: NetworkName  #: between the hosts of the papers that used this GPU


LAYER_KERNELS = 10
"""Kernels of a layer: norm, QKV, rotary, storing KV, attention, output, add and norm, gate and up, SiLU, down."""

_A100_HBM = 1.7e12
_A100_LAYER_S = 54e-6
"""gpt-fast, LLaMA2-7B: a token takes 1 / 104.9 s and reads 1397.31 GB/s / 104.9; at 1700 GB/s those 13.32 GB take 7.84
ms, and 1.70 ms are left for 32 layers. At 2, 4 and 8 GPUs the same sum gives 56, 54 and 56 microseconds."""

GPUS: Mapping[str, Gpu] = {
    "a100": Gpu(
        name="A100-80G",
        memory_bytes=80e9,  # sheet
        flops_per_s=271.2e12,  # mamf; sheet: 312
        attention_flops_per_s=0.73 * 312e12,  # FA2: 50 to 73 % of what is printed
        hbm_bytes_per_s=_A100_HBM,  # gpt-fast: "empirically, seems like peak bandwidth is about 1700 GB/s"; sheet: 2039
        layer_s=_A100_LAYER_S,
        all_reduce_s={2: 12e-6, 4: 13e-6, 8: 14e-6},  # sgl-2688: of vLLM's kernel, 512 B to 32 KB
        nvlink=LinkClass(
            # A small all-reduce of two is a signal and a read there and back (sgl-2688).
            round_trip_s=12e-6,
            bytes_per_s=230e9,  # nccl-149; sheet: 600 GB/s, both directions together
            read_bytes_per_s=230e9,
            shared=False,
        ),
        network="ethernet",  # 001 §7.1
    ),
    "h100": Gpu(
        name="H100-80G",
        memory_bytes=80e9,  # sheet
        flops_per_s=794.5e12,  # mamf; sheet: 989
        attention_flops_per_s=740e12,  # FA3
        hbm_bytes_per_s=_A100_HBM / 2.039e12 * 3.35e12,  # sheet: 3.35 TB/s; the share that an A100 reaches of its own
        layer_s=_A100_LAYER_S,  # launches depend on the host
        all_reduce_s={2: 9.5e-6, 4: 9.1e-6, 8: 10.1e-6},  # sgl-2904: of vLLM's kernel, 512 B
        nvlink=LinkClass(round_trip_s=9.5e-6, bytes_per_s=370e9, read_bytes_per_s=370e9, shared=False),  # nccl-1442
        network="infiniband",  # 004 §5.1
    ),
    "h200": Gpu(
        name="H200-141G",
        memory_bytes=141e9,  # sheet
        flops_per_s=790e12,  # as reported through torch; mamf: 828.6 of the 900 W version
        attention_flops_per_s=740e12,  # FA3, on an H100 of the same cores
        hbm_bytes_per_s=4.3e12,  # as reported of copies on the device; sheet: 4.8
        layer_s=_A100_LAYER_S,
        all_reduce_s={2: 9.5e-6, 4: 9.1e-6, 8: 10.1e-6},  # as H100
        nvlink=LinkClass(round_trip_s=9.5e-6, bytes_per_s=370e9, read_bytes_per_s=370e9, shared=False),
        network="infiniband",
    ),
}

NETWORKS: Mapping[NetworkName, LinkClass] = {
    "infiniband": LinkClass(
        round_trip_s=2 * 31e-6,  # nccl-214, each way, up to 8 KB
        bytes_per_s=400e9 / 8,  # 004 §5.1: 400 Gb/s, one for each GPU
        read_bytes_per_s=22.23e9,  # 004 §5.3: what KVDirect reads blocks at
        shared=False,
    ),
    "ethernet": LinkClass(
        round_trip_s=100e-6,  # no paper says it: TCP on one host takes 44 to 63, a switch and the wire the rest
        bytes_per_s=125e6,  # 001 §7.1, across nodes
        read_bytes_per_s=125e6,
        shared=True,
    ),
}
GPUS_PER_HOST = 8
"""001 §7.1, 004 §5.1."""
