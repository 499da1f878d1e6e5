"""DistAttention's maths: micro-attention over paged keys, and the merge of its partials (ScaleReduce).

A backend is a module with `micro_attention` of the signature in `reference`; the merge is shared.
"""

from distkv.kernels.blocks import KeyBlocks
from distkv.kernels.merge import Partial, empty_partial, merge

__all__ = ["KeyBlocks", "Partial", "empty_partial", "merge"]
