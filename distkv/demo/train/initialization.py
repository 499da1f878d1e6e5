"""The weights that training starts from; retrieval does not form by itself in minutes.

A common direction in all embeddings lets heads of the local layers look a fixed distance back, whatever the tokens.
In the other layers queries start near keys, fast rotary frequencies count little, and what is attended to is promoted
as the next token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distkv.demo.train.network import Attention, Layer, Network, Shape

DISTANCES = ((1, 2, 3, 5), (1, 3, 5, 8), (2, 6, 10, 14))
COMMON = 0.5  # length of the common direction beside tokens of length 1
GAIN = 1.5  # of the local layers
FAR_GAIN = 2.0
ENERGY = (2.0, 1.0, 1.0, 0.5)  # of the fixed-distance pattern, by rotary pair from the fastest
SLOW_FROM = 14  # rotary pairs from here on count in full in the far layers
FAST_GAIN = 0.3


@torch.no_grad()
def initial_network(shape: Shape, seed: int) -> Network:
    """A network with structured weights, by seed."""
    network = Network(shape)
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, std: float) -> Tensor:
        return torch.randn(*size, generator=generator) * std

    unit = shape.hidden**-0.5
    common = torch.nn.functional.normalize(normal(shape.hidden, std=1.0), dim=0)
    embedding = normal(shape.vocab, shape.hidden, std=unit)
    embedding -= torch.outer(embedding @ common, common)
    network.embed_tokens.weight.copy_(embedding + COMMON * common)
    for index, layer in enumerate(network.layers):
        assert isinstance(layer, Layer)
        layer.mlp.gate_proj.weight.copy_(normal(shape.inner, shape.hidden, std=unit))
        layer.mlp.up_proj.weight.copy_(normal(shape.inner, shape.hidden, std=unit))
        layer.mlp.down_proj.weight.copy_(normal(shape.hidden, shape.inner, std=0.3 * unit * shape.inner**-0.5))
        attention = layer.self_attn
        gain = GAIN if layer.local else FAR_GAIN
        attention.q_norm.weight.fill_(gain)
        attention.k_norm.weight.fill_(gain)
        if layer.local:
            _look_back(attention, DISTANCES[index], common, normal)
        else:
            _match(attention, common, normal)
    return network


def _look_back(attention: Attention, distances: tuple[int, ...], common: Tensor, normal: object) -> None:
    draw: Any = normal
    shape = attention.shape
    half, unit = shape.head_dim // 2, shape.hidden**-0.5
    size = torch.zeros(half)
    size[: len(ENERGY)] = torch.tensor(ENERGY)
    size = (size / size.sum() * shape.head_dim).sqrt()
    frequency = shape.rope_theta ** -(torch.arange(half) / half)
    share = shape.hidden**0.5 * COMMON / (1 + COMMON**2) ** 0.5  # of the common direction in a normed embedding
    key = torch.cat((size, torch.zeros(half)))
    noise = 0.3 * unit
    attention.k_proj.weight.copy_(draw(shape.kv_heads * shape.head_dim, shape.hidden, std=noise))
    attention.q_proj.weight.copy_(draw(shape.heads * shape.head_dim, shape.hidden, std=noise))
    for head in range(shape.kv_heads):
        attention.k_proj.weight[head * shape.head_dim :][: shape.head_dim] += torch.outer(key, common) / share
    for head, distance in enumerate(distances):
        query = torch.cat((size * (frequency * distance).cos(), -size * (frequency * distance).sin()))
        attention.q_proj.weight[head * shape.head_dim :][: shape.head_dim] += torch.outer(query, common) / share
    attention.v_proj.weight.copy_(draw(shape.kv_heads * shape.head_dim, shape.hidden, std=unit))
    attention.o_proj.weight.copy_(
        draw(shape.hidden, shape.heads * shape.head_dim, std=unit * (shape.heads * shape.head_dim) ** -0.5)
    )


def _match(attention: Attention, common: Tensor, normal: object) -> None:
    draw: Any = normal
    shape = attention.shape
    unit = shape.hidden**-0.5
    group = shape.heads // shape.kv_heads
    keys = draw(shape.kv_heads * shape.head_dim, shape.hidden, std=unit)
    keys -= torch.outer(keys @ common, common)
    values = draw(shape.kv_heads * shape.head_dim, shape.hidden, std=unit)
    values -= torch.outer(values @ common, common)
    shared = keys.view(shape.kv_heads, shape.head_dim, shape.hidden).repeat_interleave(group, 0).flatten(0, 1)
    attention.k_proj.weight.copy_(keys)
    attention.q_proj.weight.copy_(0.8 * shared + 0.6 * draw(*shared.shape, std=unit))
    attention.v_proj.weight.copy_(values)
    spread = values.view(shape.kv_heads, shape.head_dim, shape.hidden).repeat_interleave(group, 0).flatten(0, 1)
    attention.o_proj.weight.copy_(0.1 * spread.T)
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.view(2, shape.head_dim // 2)[:, :SLOW_FROM] = FAST_GAIN
