"""All layers of a decoder, one after another without a stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.layout import LayerKv
from distkv.kernels.exchange import Exchange, Exchanged
from distkv.kernels.layer.fused_qkv import FusedQkv
from distkv.kernels.layer.layer_tail import LayerTailWeights


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: what attention needs, and the weights of its tail. window: in tokens, or None."""

    q_norm: Tensor | None
    k_norm: Tensor | None
    kv: LayerKv
    window: int | None
    tail: LayerTailWeights


class Passed(NamedTuple):
    """hidden: the normed hidden states of the wanted rows, [M, hidden]; None where an exchange failed. layers: what all
    layers came to, or those until that one; the partials of answers hold until the next layer."""

    hidden: Tensor | None
    layers: list[Exchanged]


class Layers(Protocol):
    """A stack of layers as one call."""

    def __call__(
        self, x: Tensor, qkv: FusedQkv, metadata: AttentionMetadata, slots: Tensor, offsets: Tensor, wanted: Tensor
    ) -> Tensor:
        """x: [N, hidden], the embedded tokens; qkv: of the first layer. Both are overwritten. metadata: the rows of
        its sequences follow each other and are all N. slots, offsets: int64 [N], where the K and V of each row are
        stored. wanted: int64 [M].

        Returns the normed hidden states of the wanted rows, [M, hidden]. Raises MemoryError.
        """

    def exchanging(
        self,
        x: Tensor,
        qkv: FusedQkv,
        metadata: AttentionMetadata,
        slots: Tensor,
        offsets: Tensor,
        wanted: Tensor,
        exchange: Exchange,
    ) -> Passed:
        """The same with keys elsewhere. exchange: of this metadata. Where it fails x is what came before the tail of
        that layer, whose K and V are stored. Raises MemoryError.
        """
