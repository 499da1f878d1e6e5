"""What two workers must have in common to read each other's rBlocks: model, weights, dtypes, layout, protocol."""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec
import torch
import xxhash

from distkv.engine.model.config import ModelConfig
from distkv.kernels import LayerKv
from distkv.wire.messages.common import PROTOCOL_VERSION

LAYOUT = "slot,layer,kv,head"
"""The order of a pool outside of `LayerKv`."""


class Compat(NamedTuple):
    """hash: 32 hex digits, equal where all of it is. words: the same as "name value, name value"; model and weights are
    told apart by the beginnings of hashes."""

    hash: str
    words: str

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        fingerprint: str,
        dtype: torch.dtype,
        block_tokens: int,
        layout: type[LayerKv],
        kv_dtype: torch.dtype,
    ) -> Self:
        """fingerprint: of the weights, see `weights.fingerprint`. dtype: of queries and partials. kv_dtype: of keys and
        values. layout: of one layer."""
        identity = msgspec.json.encode(config.identity(), order="sorted")
        facts = {
            "model": (identity.decode(), f"{config.model_type}/{xxhash.xxh3_64_hexdigest(identity)[:8]}"),
            "weights": (fingerprint, fingerprint[:8]),
            "dtype": (_name(dtype), _name(dtype)),
            "KV dtype": (_name(kv_dtype), _name(kv_dtype)),
            "block size": (block_tokens, block_tokens),
            "layout": (f"{LAYOUT},{layout.name}", layout.name),
            "protocol": (PROTOCOL_VERSION, PROTOCOL_VERSION),
        }
        exact = {name: value for name, (value, _) in facts.items()}
        return cls(
            hash=xxhash.xxh3_128_hexdigest(msgspec.json.encode(exact, order="sorted")),
            words=", ".join(f"{name} {shown}" for name, (_, shown) in facts.items()),
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
