"""DistAttention's maths: micro-attention over paged keys, and the merge of its partials (ScaleReduce).

`reference` says what is computed, `backend` how backends are called, `layout` how K and V lie in memory.
"""

from distkv.kernels.backend import Backend, KeyTables
from distkv.kernels.blocks import KeyBlocks
from distkv.kernels.heads import Heads
from distkv.kernels.layout import LayerKv, PanelKv, RowKv
from distkv.kernels.merge import Partial, empty_partial, merge

__all__ = [
    "Backend",
    "Heads",
    "KeyBlocks",
    "KeyTables",
    "LayerKv",
    "PanelKv",
    "Partial",
    "RowKv",
    "empty_partial",
    "merge",
]
