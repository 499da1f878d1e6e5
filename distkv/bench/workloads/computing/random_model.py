"""A model with random weights made where it computes, without a checkpoint: for benchmarks of time alone."""

from __future__ import annotations

import torch

from distkv.bench.baselines.checkpoints import Model as Shape
from distkv.engine.device.device import Device
from distkv.engine.model.config import ModelConfig
from distkv.engine.model.decoder import Model
from distkv.engine.model.rope_config import RopeConfig
from distkv.engine.model.weights import LayerWeights, Weights
from distkv.kernels.layer.linear import Linear


def random_model(shape: Shape, device: Device) -> Model:
    """In bfloat16."""
    dtype, place = torch.bfloat16, device.place
    make, dim = device.backend.linear, shape.hidden // shape.heads
    generator = torch.Generator(place).manual_seed(0)

    def linear(out: int, width: int) -> Linear:
        weight = torch.empty(out, width, dtype=dtype, device=place)
        return make(weight.normal_(0, width**-0.5, generator=generator), None)

    def layer() -> LayerWeights:
        return LayerWeights(
            attention_norm=torch.ones(shape.hidden, dtype=dtype, device=place),
            qkv=linear(shape.hidden + 2 * shape.kv_heads * dim, shape.hidden),
            o=linear(shape.hidden, shape.hidden),
            mlp_norm=torch.ones(shape.hidden, dtype=dtype, device=place),
            gate_up=linear(2 * shape.inner, shape.hidden),
            down=linear(shape.hidden, shape.inner),
            q_norm=None,
            k_norm=None,
        )

    weights = Weights(
        embed=torch.empty(shape.vocab, shape.hidden, dtype=dtype, device=place).normal_(generator=generator),
        layers=tuple(layer() for _ in range(shape.layers)),
        norm=torch.ones(shape.hidden, dtype=dtype, device=place),
        lm_head=linear(shape.vocab, shape.hidden),
    )
    return Model(_config(shape), weights, device)


def _config(shape: Shape) -> ModelConfig:
    return ModelConfig(
        model_type="llama",
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        rms_norm_eps=1e-6,
        rope=RopeConfig(),
        windows=(None,) * shape.layers,
        max_positions=131072,
    )
