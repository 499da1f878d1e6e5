"""What FlashInfer and FlashAttention-3 say in their documentation that they compute, in float64.

This shows that our side of a call is right, not that the libraries do what they say: `test_installed.py` does, where
they are installed.
"""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from distkv.kernels.triton.libraries import backend, flash_attention3, flash_infer


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """q: [T, Hq, D]; k, v: [S, Hkv, D]. Causal masks are aligned to the bottom right. out [T, Hq, D], natural lse."""
    group = q.shape[1] // k.shape[1]
    keys, values = (half.double().repeat_interleave(group, 1) for half in (k, v))
    scores = torch.einsum("thd,shd->hts", q.double(), keys) * scale
    if causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(len(k) - len(q) + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("hts,shd->thd", scores.softmax(-1), values)
    return out, scores.logsumexp(-1).T


class _Wrapper:
    """Of FlashInfer, "HND". Pages of sequence i: indices[indptr[i]:indptr[i + 1]], the last with last_page_len[i] keys;
    keys and values [pages, Hkv, P, D]. lse [rows, Hq] of base 2."""

    causal = False

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_tensor_cores: bool = False,
        *,
        backend: str = "auto",
    ) -> None:
        assert kv_layout == "HND" and not float_workspace_buffer.any() and backend in ("auto", "fa2", "fa3")
        self.use_tensor_cores = use_tensor_cores

    def _plan(
        self, rows: Tensor, indptr: Tensor, indices: Tensor, last: Tensor, heads: tuple[int, ...], options: Any
    ) -> None:
        assert all(x.dtype == torch.int32 for x in (rows, indptr, indices, last))
        assert set(options) <= {"sm_scale", "q_data_type", "kv_data_type", "causal"}
        self._rows, self._indptr, self._indices, self._last = rows, indptr, indices, last
        self._heads, self._options = heads, options

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], return_lse: bool = False) -> tuple[Tensor, Tensor]:
        assert return_lse
        k, v = paged_kv_cache
        assert (q.shape[1], k.shape[1], k.shape[3], k.shape[2]) == self._heads
        assert k.stride() == v.stride()
        assert (q.dtype, k.dtype) == (self._options["q_data_type"], self._options["kv_data_type"])
        outs, lses = [], []
        for i, last in enumerate(self._last.tolist()):
            pages = self._indices[self._indptr[i] : self._indptr[i + 1]].long()
            length = (len(pages) - 1) * k.shape[2] + last
            keys, values = (half[pages].transpose(1, 2).flatten(0, 1)[:length] for half in (k, v))
            rows = q[self._rows[i] : self._rows[i + 1]]
            out, lse = attention(rows, keys, values, self._options["sm_scale"], self._options.get("causal", False))
            outs.append(out)
            lses.append(lse / math.log(2))
        return torch.cat(outs).to(q.dtype), torch.cat(lses).float()


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
        head_dim: int, page_size: int, **options: Any,
    ) -> None:  # fmt: skip
        rows = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        self._plan(rows, indptr, indices, last_page_len, (num_qo_heads, num_kv_heads, head_dim, page_size), options)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, **options: Any,
    ) -> None:  # fmt: skip
        heads = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self._plan(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, heads, options)


FLASHINFER = SimpleNamespace(
    BatchDecodeWithPagedKVCacheWrapper=BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper=BatchPrefillWithPagedKVCacheWrapper,
)


def get_scheduler_metadata(
    batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int, headdim: int,
    cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16, headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None, page_size: int | None = None, causal: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Of FlashAttention-3: what a call has to be, for the call to check."""
    return dict(
        batch=batch_size, rows=max_seqlen_q, reach=max_seqlen_k, heads=(num_heads_q, num_heads_kv, headdim),
        lengths=cache_seqlens, dtype=qkv_dtype, ends=cu_seqlens_q, page_size=page_size, causal=causal,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor, page_table: Tensor,
    cu_seqlens_q: Tensor | None = None, max_seqlen_q: int | None = None, softmax_scale: float, causal: bool = False,
    scheduler_metadata: dict[str, Any], return_softmax_lse: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Of FlashAttention-3: k_cache, v_cache [pages, P, Hkv, D]; q [batch, rows, Hq, D], lse [batch, Hq, rows], or with
    cu_seqlens_q [all rows, Hq, D], lse [Hq, all rows]. lse is natural."""
    assert return_softmax_lse and page_table.dtype == cache_seqlens.dtype == torch.int32
    assert k_cache.stride(-1) == v_cache.stride(-1) == page_table.stride(-1) == 1 and q.dtype == k_cache.dtype
    tokens, planned = k_cache.shape[1], scheduler_metadata
    assert planned["heads"] == (q.shape[-2], k_cache.shape[2], q.shape[-1]) and planned["page_size"] == tokens
    assert (planned["batch"], planned["causal"], planned["dtype"]) == (len(page_table), causal, q.dtype)
    assert planned["lengths"] is cache_seqlens and planned["ends"] is cu_seqlens_q
    assert planned["reach"] == page_table.shape[1] * tokens
    found = []
    for i, length in enumerate(cache_seqlens.tolist()):
        pages = page_table[i, : -(-length // tokens)].long()
        keys, values = (half[pages].flatten(0, 1)[:length] for half in (k_cache, v_cache))
        rows = q[i] if cu_seqlens_q is None else q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]]
        assert len(rows) <= planned["rows"] and max_seqlen_q in (None, planned["rows"])
        found.append(attention(rows, keys, values, softmax_scale, causal))
    outs, lses = zip(*found, strict=True)
    if cu_seqlens_q is None:
        return torch.stack(outs).to(q.dtype), torch.stack([lse.T for lse in lses]).float(), torch.empty(0)
    return torch.cat(outs).to(q.dtype), torch.cat(lses).T.float(), torch.empty(0)


FLASH_ATTENTION_3 = SimpleNamespace(
    get_scheduler_metadata=get_scheduler_metadata, flash_attn_with_kvcache=flash_attn_with_kvcache
)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, in place of the libraries themselves."""
    monkeypatch.setitem(sys.modules, "flashinfer", FLASHINFER)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", FLASH_ATTENTION_3)
    for module in (backend, flash_attention3):
        monkeypatch.setattr(module, "find_spec", lambda _name: True)
    monkeypatch.setattr(flash_infer, "_WORKSPACE_BYTES", 16)
