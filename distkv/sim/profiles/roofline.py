"""How long an instance takes, by a roofline: what its matrices need in bandwidth or in arithmetic, whichever is more.

A layer of a decode step reads its weights once, whatever the batch, or computes for longer than that; it has a fixed
cost for its launches, and two all-reduces where tensor-parallel GPUs share it. So the batch is nearly free up to
`flops_per_s / hbm_bytes_per_s` rows, and a layer on 8 GPUs takes three eighths of the time on one: a third of its
efficiency, as 001 §2.2 measured. Attention of a decode step reads keys and values; nothing of it is shared.

With pipeline stages, one on each host, a batch is divided into as many micro-batches, which follow each other through
the stages: each stage computes all of them one after the other in the time of a step, and a micro-batch crosses the
network between two stages. Prefill keeps the pipeline full, chunk behind chunk.
"""

from __future__ import annotations

import msgspec

from distkv.sim.profiles.hardware import GPUS_PER_HOST, LAYER_KERNELS, NETWORKS, Gpu, LinkClass, NetworkName
from distkv.sim.profiles.shapes import ITEM_BYTES, PARTIAL_ITEM_BYTES, Shape

MEMORY_SHARE = 0.9
"""Of a GPU's memory that is planned with: vLLM's default for --gpu-memory-utilization at the time of the papers."""
CHUNK_TOKENS = 2048
"""Most tokens of one step, by default (`max_num_batched_tokens`): activations are of so many."""
LOGIT_ROWS = 256
"""Most sequences that are sampled at once, vLLM's default then; their logits and probabilities are float32."""
REMOTE_KERNELS = 2
"""Kernels that a layer has more with creditors: sending queries and merging partials; a creditor's, to serve one."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a model on `tensor_parallel` GPUs of each of `stages` hosts."""

    gpu: Gpu
    shape: Shape
    tensor_parallel: int
    stages: int = 1
    network: NetworkName

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.stages

    @property
    def ridge_rows(self) -> float:
        """Rows of one micro-batch above which arithmetic limits a matrix product, and not reading its weights."""
        return self.gpu.flops_per_s / self.gpu.hbm_bytes_per_s * ITEM_BYTES / 2

    @property
    def attention_ridge_rows(self) -> float:
        """Queries above which arithmetic limits attention, and not reading keys and values."""
        reading_s = self.shape.kv_bytes / self.gpu.hbm_bytes_per_s
        return reading_s * self.gpu.attention_flops_per_s / (4 * self.shape.hidden)

    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit: memory less weights, less activations of a step.

        000 §6.3 has 108k tokens of LLaMA2-7B on one A100, 000 Table 2 up to 140k of 13B on two.
        """
        shape, tp = self.shape, self.tensor_parallel
        activations = CHUNK_TOKENS * (2 * shape.hidden + 3 * shape.ffn / tp) * ITEM_BYTES
        logits = 2 * 4 * LOGIT_ROWS * shape.vocabulary
        usable = self.gpus * (MEMORY_SHARE * self.gpu.memory_bytes - activations - logits) - shape.weight_bytes
        return max(0, int(usable // (shape.layers * shape.kv_bytes)))

    # --- what it computes for its own requests

    def layer_s(self, rows: float) -> float:
        """Seconds of one layer without its attention, for so many rows at once."""
        return self.gpu.layer_s + self._matrix_s(self.shape.layer_parameters, rows) + 2 * self.all_reduce_s(rows)

    def all_reduce_s(self, rows: float) -> float:
        """Seconds until the GPUs of a stage have added up hidden states of so many rows; 0 for one GPU."""
        gpus = self.tensor_parallel
        if gpus == 1:
            return 0.0
        travelling = 2 * (gpus - 1) / gpus * rows * self.shape.hidden * ITEM_BYTES
        return self.gpu.all_reduce_s[gpus] + travelling / self.gpu.nvlink.bytes_per_s

    def hop_s(self, rows: float) -> float:
        """Seconds until the next stage has the hidden states of so many rows; 0 with one stage."""
        if self.stages == 1:
            return 0.0
        network = NETWORKS[self.network]
        return network.round_trip_s / 2 + rows * self.shape.hidden * ITEM_BYTES / network.bytes_per_s

    def step_s(self, batch: int) -> float:
        """Seconds of a decode step without its attention."""
        rows = max(1.0, batch / self.stages)
        ends_s = self.hop_s(rows) + self._matrix_s(self.shape.output_parameters, rows)
        return self.shape.layers * self.layer_s(rows) + self.stages * ends_s

    def attention_s(self, tokens: int) -> float:
        """Seconds of a decode step's attention over so many tokens, in all layers; with stages, of sequences enough
        that each has some."""
        return tokens * self.shape.layers * self.shape.kv_bytes / (self.gpus * self.gpu.hbm_bytes_per_s)

    def prefill_s(self, tokens: int) -> float:
        """Seconds by which a prefill chunk keeps others waiting, without its attention."""
        stage_s = self.shape.layers / self.stages * self.layer_s(tokens)
        return max(stage_s, self.hop_s(tokens)) + self._matrix_s(self.shape.output_parameters, 1)

    def prefill_attention_s(self, tokens: int) -> float:
        """Seconds of the attention of so many queries to one key, in all layers."""
        shape, gpu = self.shape, self.gpu
        arithmetic_s = 4 * shape.hidden * tokens / gpu.attention_flops_per_s
        return shape.layers / self.gpus * max(arithmetic_s, shape.kv_bytes / gpu.hbm_bytes_per_s)

    # --- what DistAttention adds

    @property
    def remote_s(self) -> float:
        """Seconds that a step takes longer in itself when it has creditors, and that serving one takes besides
        attention."""
        return self.shape.layers * REMOTE_KERNELS * self.gpu.layer_s / LAYER_KERNELS

    @property
    def query_bytes(self) -> int:
        """Of one row in one layer."""
        return self.shape.hidden * ITEM_BYTES

    @property
    def partial_bytes(self) -> int:
        """Of one row in one layer."""
        return self.shape.heads * (self.shape.head_dim + 1) * PARTIAL_ITEM_BYTES

    def link(self, link: LinkClass) -> LinkClass:
        """What it does between two such instances, whose GPUs each have one, or whose hosts share one."""
        lanes = 1 if link.shared else self.tensor_parallel
        return msgspec.structs.replace(
            link, bytes_per_s=lanes * link.bytes_per_s, read_bytes_per_s=lanes * link.read_bytes_per_s
        )

    def _matrix_s(self, parameters: int, rows: float) -> float:
        """Seconds of a product with so many parameters, divided among the GPUs of a stage."""
        reading_s = ITEM_BYTES * parameters / self.gpu.hbm_bytes_per_s
        return max(reading_s, 2 * parameters * rows / self.gpu.flops_per_s) / self.tensor_parallel


def valid_tensor_parallel(gpu: Gpu, shape: Shape) -> tuple[int, ...]:
    """How many GPUs of a host can share a layer of this model."""
    widths = (1, *gpu.all_reduce_s)
    return tuple(gpus for gpus in widths if gpus <= GPUS_PER_HOST and not shape.kv_heads % gpus)
