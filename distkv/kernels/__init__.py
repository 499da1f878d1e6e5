"""DistAttention's maths: micro-attention over paged keys, and the merge of its partials (ScaleReduce).

`reference` says what is computed, `backend` is the contract of a device's kernels, `layout` how K and V lie in memory.
"""

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.block_table import BlockTable
from distkv.kernels.attention.layout import LayerKv, PanelKv, RowKv
from distkv.kernels.attention.merge import Partial, empty_partial, merge
from distkv.kernels.backend import Backend
from distkv.kernels.layer.fused_qkv import FusedQkv

__all__ = [
    "AttentionMetadata",
    "Backend",
    "BlockTable",
    "FusedQkv",
    "LayerKv",
    "PanelKv",
    "Partial",
    "RowKv",
    "empty_partial",
    "merge",
]
