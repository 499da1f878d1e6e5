"""DistAttention's maths: micro-attention over paged keys, and the merge of its partials (ScaleReduce).

`reference` says what is computed, `backend` is the contract of a device's kernels, `layout` how K and V lie in memory.
"""

from distkv.kernels.attention_metadata import AttentionMetadata
from distkv.kernels.backend import Backend
from distkv.kernels.block_table import BlockTable
from distkv.kernels.fused_qkv import FusedQkv
from distkv.kernels.layout import LayerKv, PanelKv, RowKv
from distkv.kernels.merge import Partial, empty_partial, merge

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
