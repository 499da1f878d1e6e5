"""FlashAttention-3 (the folder `hopper` of flash-attention) over our pools.

It takes pages [pages, P, Hkv, D] by the strides of all but the last dimension, so ours are a view of that. The page
table is [S, most pages], lengths are read on the device, and its lse is a natural log. Keys have the type of queries:
no float8 keys with 16-bit queries. Pages of fewer tokens than its tile has (16 are, and so are all sizes that
do not divide by 128 for heads of 128 numbers) it copies without TMA.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from distkv.kernels.attention.layout import RowKv
from distkv.kernels.attention.merge import Partial
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.libraries.pages import Pages

_MODULE = "flash_attn_interface"


def interface() -> Any:
    """Its module of functions. Raises ImportError where it is not installed."""
    return import_module(_MODULE if find_spec(_MODULE) else f"flash_attn_3.{_MODULE}")


class FlashAttention3:
    """See PagedAttention: flash_attn_with_kvcache, planned by get_scheduler_metadata as it advises for decoding.

    Raises ImportError where it is not installed.
    """

    def __init__(self, pages: Pages, shape: Shape, scale: float, device: torch.device) -> None:
        functions = interface()
        self._attend = functions.flash_attn_with_kvcache
        most_rows = int(pages.rows.max())
        self._lengths, self._table = pages.lengths.to(device), pages.table.to(device)
        # One row per sequence is a batch of its own; else sequences lie one after the other.
        self._is_decode = most_rows == 1
        causal = pages.causal and not self._is_decode
        varying = {} if self._is_decode else {"cu_seqlens_q": pages.first_row.to(device)}
        self._options: dict[str, Any] = {"softmax_scale": scale, "causal": causal, **varying}
        if not self._is_decode:
            self._options["max_seqlen_q"] = most_rows
        self._options["scheduler_metadata"] = functions.get_scheduler_metadata(
            len(pages.rows),
            most_rows,
            self._table.shape[1] * pages.block_tokens,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            self._lengths,
            qkv_dtype=getattr(torch, shape.q_dtype),
            page_size=pages.block_tokens,
            causal=causal,
            **varying,
        )

    @staticmethod
    def takes(shape: Shape) -> bool:
        """Whether it is for such queries and keys: 16 bits, and heads of up to 256 numbers."""
        return shape.kv_dtype == shape.q_dtype and shape.dot_bytes == 2 and shape.head_dim in range(8, 257, 8)

    def run(self, q: Tensor, kv: RowKv) -> tuple[Tensor, Tensor]:
        """See PagedAttention. Single rows: out [N, 1, Hq, D], lse [N, Hq, 1]; else [N, Hq, D] and [Hq, N]. Natural."""
        out, lse, *_ = self._attend(
            q[:, None] if self._is_decode else q,
            kv.k.transpose(1, 2),
            kv.v.transpose(1, 2),
            page_table=self._table,
            cache_seqlens=self._lengths,
            return_softmax_lse=True,
            **self._options,
        )
        return out, lse

    def partial(self, q: Tensor, kv: RowKv) -> Partial:
        """See PagedAttention."""
        return in_order(*self.run(q, kv))


def in_order(out: Tensor, lse: Tensor) -> Partial:
    """Its result as a partial: out [N, Hq, D], lse [N, Hq]."""
    if out.dim() == 4:
        return out[:, 0].float(), lse[:, :, 0]
    return out.float(), lse.T.contiguous()
