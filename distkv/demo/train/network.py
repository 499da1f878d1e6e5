"""The demo model for training: the same function as its exported checkpoint, computed only where training needs it.

Qwen3 with a sliding window in the first layers. The last layer and the logits are computed at the asked rows only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distkv.demo.train.batches import Batch


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. window: positions that a token of the first local_layers layers sees, itself included."""

    vocab: int = 4096
    hidden: int = 128
    inner: int = 384
    layers: int = 4
    local_layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    window: int = 64
    rope_theta: float = 1e8
    eps: float = 1e-6
    near_tokens: int = 64  # filler so near is never diluted


class Norm(nn.Module):
    """Root mean square norm with a gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Attention of one layer, named as in the checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_dim, shape.eps)
        self.k_norm = Norm(shape.head_dim, shape.eps)

    def forward(self, rows: Tensor, x: Tensor, row_turn: Turn, turn: Turn, bias: Tensor, local: bool) -> Tensor:
        """rows: [B, R, hidden], the queries'; x: [B, T, hidden]; bias: [B, 1, R, T], or of `local_bias` if local."""
        q = self.q_norm(self._heads(self.q_proj(rows), self.shape.heads))
        k = self.k_norm(self._heads(self.k_proj(x), self.shape.kv_heads))
        v = self._heads(self.v_proj(x), self.shape.kv_heads)
        group = self.shape.heads // self.shape.kv_heads
        q, k = turned(q, row_turn), turned(k, turn)
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        if local:
            out = _in_window(q, k, v, bias, self.shape.window)
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        result: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.shape.head_dim).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape, local: bool) -> None:
        super().__init__()
        self.local = local
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, rows: Tensor | None, row_turn: Turn, turn: Turn, bias: Tensor) -> Tensor:
        """The layer's output at `rows` [B, R], or everywhere."""
        normed = self.input_layernorm(x)
        asked = normed
        if rows is not None:
            x, asked = take(x, rows), take(normed, rows)
        x = x + self.self_attn(asked, normed, row_turn, turn, bias, self.local)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Network(nn.Module):
    """The whole model; embedding and output are tied."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, index < shape.local_layers) for index in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, batch: Batch) -> Tensor:
        """float32 [B, R, vocab], the logits at the asked rows."""
        shape, length = self.shape, batch.tokens.shape[1]
        near_turn = turn_of(torch.arange(length)[None], shape)
        turn = turn_of(batch.positions, shape)
        row_turn = (turn[0].gather(2, _spread(batch.rows, turn[0])), turn[1].gather(2, _spread(batch.rows, turn[1])))
        near = local_bias(length, shape.window)
        far = diluted_bias(batch, shape.near_tokens)
        far_rows = far.gather(2, batch.rows[:, None, :, None].expand(-1, -1, -1, length))
        x = self.embed_tokens(batch.tokens)
        for index, layer in enumerate(self.layers):
            if index == shape.layers - 1:
                x = layer(x, batch.rows, row_turn, turn, far_rows)
            elif index < shape.local_layers:
                x = layer(x, None, near_turn, near_turn, near)
            else:
                x = layer(x, None, turn, turn, far)
        return F.linear(self.norm(x), self.embed_tokens.weight)


Turn = tuple[Tensor, Tensor]
"""Cosine and sine, [B or 1, 1, T, head_dim / 2] each."""


def turn_of(positions: Tensor, shape: Shape) -> Turn:
    """positions: [B, T]."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = positions[:, None, :, None].float() * shape.rope_theta**-exponent
    return angles.cos(), angles.sin()


def turned(x: Tensor, turn: Turn) -> Tensor:
    """x: [B, H, T, head_dim], rotated in pairs of its halves."""
    (cos, sin), (a, b) = turn, x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """[B, T, N] at rows [B, R]: [B, R, N]."""
    return x.gather(1, rows[:, :, None].expand(-1, -1, x.shape[-1]))


def _spread(rows: Tensor, like: Tensor) -> Tensor:
    return rows[:, None, :, None].expand(-1, -1, -1, like.shape[-1])


def diluted_bias(batch: Batch, near_tokens: int) -> Tensor:
    """[B, 1, T, T], causal: what is added to the scores so that thin filler weighs as much as that of the document."""
    index = torch.arange(batch.tokens.shape[1])
    back = index[:, None] - index[None, :]
    bias = (batch.is_filler * batch.dilution[:, None])[:, None, :] * (back > near_tokens)
    return bias.masked_fill_(back < 0, -torch.inf)[:, None]


def local_bias(length: int, window: int) -> Tensor:
    """[T / window, 1, window, 2 * window]: a block of queries to its own keys and those of the block before."""
    query, key = torch.arange(window)[:, None] + window, torch.arange(2 * window)[None, :]
    seen = (key <= query) & (key > query - window)
    seen = seen.expand(length // window, -1, -1).clone()
    seen[0, :, :window] = False
    return torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None]


def _in_window(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, window: int) -> Tensor:
    count, heads, length, size = q.shape
    blocks = length // window

    def split(t: Tensor) -> Tensor:
        return t.reshape(count, heads, blocks, window, size).transpose(1, 2)

    def pairs(t: Tensor) -> Tensor:
        own = split(t)
        before = torch.cat((torch.zeros_like(own[:, :1]), own[:, :-1]), dim=1)
        return torch.cat((before, own), dim=3).flatten(0, 1)

    out = F.scaled_dot_product_attention(
        split(q).flatten(0, 1), pairs(k), pairs(v), attn_mask=bias.repeat(count, 1, 1, 1)
    )
    return out.view(count, blocks, heads, window, size).transpose(1, 2).reshape(count, heads, length, size)
