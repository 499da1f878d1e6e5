"""FlashInfer's paged attention (flashinfer-python 0.6) over our pools.

Its "HND" layout is ours: [pages, Hkv, P, D], where a page may lie any distance from the next one as long as K and V
lie alike. It wants the ends of all sequences on the host, once per step, and its lse is in base 2.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from distkv.kernels.attention.layout import RowKv
from distkv.kernels.attention.merge import Partial
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.libraries.pages import Pages

_WORKSPACE_BYTES = 256 << 20
_TENSOR_CORE_GROUP = 4
"""Query heads of a KV head from which on its decode is faster with tensor cores, as its documentation says."""


class Workspaces:
    """Memory that its kernels leave partials in, kept for the next plan of the same stream: what that launches comes
    after what is there."""

    def __init__(self) -> None:
        self._free: dict[int, list[Tensor]] = {}
        self._lock = threading.Lock()

    def take(self, device: torch.device, queue: int) -> Tensor:
        """uint8, as it was given back, or a new one, which it wants to be zeros."""
        with self._lock:
            if free := self._free.get(queue):
                return free.pop()
        return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def give_back(self, workspace: Tensor, queue: int) -> None:
        """From whatever is launched in that stream from now on, another may have it."""
        with self._lock:
            self._free.setdefault(queue, []).append(workspace)


def queue_of(device: torch.device) -> int:
    """The current stream, as a key."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


class FlashInfer:
    """See PagedAttention: BatchDecodeWithPagedKVCacheWrapper for single rows, else BatchPrefillWithPagedKVCacheWrapper.

    Raises ImportError where it is not installed, and what it raises itself for shapes that it does not take. It is to
    be kept until what it launched is done: some of what kernels read is copied from host memory of its own.
    """

    def __init__(
        self, pages: Pages, shape: Shape, scale: float, device: torch.device, workspaces: Workspaces | None = None
    ) -> None:
        """workspaces: that its own is taken from, and given back to with the last reference to this."""
        import flashinfer  # type: ignore[import-not-found]

        workspaces = workspaces or Workspaces()
        queue = queue_of(device)
        workspace = workspaces.take(device, queue)
        weakref.finalize(self, workspaces.give_back, workspace, queue)
        ends: tuple[Tensor, ...] = (pages.first_page, pages.slots, pages.last_tokens)
        if bool((pages.rows == 1).all()):
            tensor_cores = shape.heads // shape.kv_heads >= _TENSOR_CORE_GROUP
            # What it chooses itself on Hopper, "fa3", does not divide a sequence: a long one has a program per KV head.
            self._wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                workspace, "HND", use_tensor_cores=tensor_cores, backend="fa2"
            )
            more = {}
        else:
            self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
            ends, more = (pages.first_row, *ends), {"causal": pages.causal}
        # What follows the ends has one order in both and in all versions; the rest has names.
        self._wrapper.plan(
            *ends,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            pages.block_tokens,
            sm_scale=scale,
            q_data_type=getattr(torch, shape.q_dtype),
            kv_data_type=getattr(torch, shape.kv_dtype),
            **more,
        )

    @staticmethod
    def takes(shape: Shape) -> bool:
        """Whether it is for such queries and keys: 16 bits, keys float8 too, and heads of 64, 128 or 256 numbers."""
        return shape.dot_bytes == 2 and shape.head_dim in (64, 128, 256)

    def run(self, q: Tensor, kv: RowKv) -> tuple[Tensor, Tensor]:
        """See PagedAttention. lse: [N, Hq], base 2."""
        out, lse = self._wrapper.run(q, (kv.k, kv.v), return_lse=True)
        return out, lse

    def partial(self, q: Tensor, kv: RowKv) -> Partial:
        """See PagedAttention."""
        return natural(*self.run(q, kv))


def natural(out: Tensor, lse: Tensor) -> Partial:
    """Its result as a partial: lse [N, Hq] from base 2."""
    return out.float(), lse * math.log(2)
