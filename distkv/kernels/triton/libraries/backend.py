"""The Triton backend with attention of another library, for the calls that this takes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Protocol

import structlog
import torch
from torch import Tensor

from distkv.errors import ConfigError
from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.block_table import BlockTable
from distkv.kernels.attention.layout import LayerKv, RowKv
from distkv.kernels.attention.merge import Partial
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.libraries.flash_attention3 import FlashAttention3
from distkv.kernels.triton.libraries.flash_infer import FlashInfer, Workspaces
from distkv.kernels.triton.libraries.pages import PagedAttention, Pages, mask_of

_SETTING = "attention_backend"
_OTHERWISE = "use --attention-backend triton"


class Plan(Protocol):
    """Makes a library's attention over some pages."""

    def __call__(self, pages: Pages, shape: Shape, scale: float, device: torch.device) -> PagedAttention: ...


@dataclass(frozen=True)
class Library:
    """modules: one of which has to be there. install: how it gets there. takes: whether it is for such queries and
    keys. planner: what plans, with state of its own if it has any; made once for a backend."""

    modules: tuple[str, ...]
    install: str
    takes: Callable[[Shape], bool]
    planner: Callable[[], Plan]


LIBRARIES = {
    "flashinfer": Library(
        ("flashinfer",),
        "pip install 'flashinfer-python>=0.6'",
        FlashInfer.takes,
        lambda: partial(FlashInfer, workspaces=Workspaces()),
    ),
    "fa3": Library(
        ("flash_attn_interface", "flash_attn_3"),
        "build the folder hopper of github.com/Dao-AILab/flash-attention",
        FlashAttention3.takes,
        lambda: FlashAttention3,
    ),
}
"""By their names in settings."""


@dataclass(frozen=True)
class _Planned:
    """rows: of the queries, entry by entry."""

    attention: PagedAttention
    rows: slice | Tensor


class LibraryBackend(TritonBackend):
    """A TritonBackend whose attention is a library's where that takes a call: no window and no ALiBi, positions known
    on the host, and every row sees all keys of its table, or those up to its own. Ours computes the others.

    Partials are rounded to the type of queries before they are merged. No graph holds its attention: a library plans
    for the lengths of each step, on the host, and a graph would replay the plan of the step that it was captured in.
    """

    static_keys = ()

    def __init__(self, name: str, index: int | None = None) -> None:
        """name: in LIBRARIES. index: see TritonBackend. Raises ConfigError where the library is not here."""
        library = LIBRARIES[name]
        if not any(find_spec(module) for module in library.modules):
            raise ConfigError(_SETTING, f"{name} is not here: no module {library.modules[0]}", library.install)
        super().__init__(index=index)
        self.name, self._takes, self._plan_pages = name, library.takes, library.planner()
        self.why_not_static = f"{name} plans each step on the host; {_OTHERWISE} for graphs"

    def attend(
        self,
        q: Tensor,
        kv: LayerKv,
        metadata: AttentionMetadata,
        scale: float,
        window: int | None = None,
        alibi: Tensor | None = None,
        *,
        serving: bool = False,
    ) -> Partial:
        """See Backend."""
        planned = self._planned(q, kv, metadata, scale) if window is None and alibi is None else None
        if planned is None:
            return super().attend(q, kv, metadata, scale, window, alibi, serving=serving)
        assert isinstance(kv, RowKv)
        return planned.attention.partial(q[planned.rows].contiguous(), kv)

    def warm_up(self, num_heads: int, kv: LayerKv, dtype: torch.dtype, windows: Collection[int | None]) -> int:
        """See Backend; what a library compiles when it is first called is compiled too. Raises ConfigError for queries
        and keys that it does not take."""
        count = super().warm_up(num_heads, kv, dtype, windows)
        q = torch.zeros(2, num_heads, kv.head_dim, dtype=dtype, device=kv.k.device)
        shape = Shape.of(q, kv.k)
        if not self._takes(shape):
            raise ConfigError(_SETTING, f"{self.name} is not for {shape.key}", _OTHERWISE)
        if set(windows) != {None}:
            structlog.get_logger().warning("layers with windows are triton's", backend=self.name)
        # One row, rows that see all keys, and the last rows; the first block twice.
        tokens = kv.block_tokens
        table = BlockTable((0, 0), (0, tokens), 2 * tokens, tokens)
        last = 2 * tokens - 1
        for positions in ([last], [last, last], [last - 1, last]):
            host = torch.tensor(positions)
            rows = (range(len(positions)),)
            metadata = AttentionMetadata(rows, (table,), host.to(q.device), host)
            try:
                self.attend(q[: len(positions)], kv, metadata, kv.head_dim**-0.5)
            except Exception as error:  # of a library that is another version than we know, or lacks the GPU
                problem = f"{self.name} fails over {shape.key}: {type(error).__name__}: {error}"
                raise ConfigError(_SETTING, problem, _OTHERWISE) from error
        return count + 3

    def _planned(self, q: Tensor, kv: LayerKv, metadata: AttentionMetadata, scale: float) -> _Planned | None:
        """Once per step for layers of one shape; None for a call that the library does not take."""
        found: dict[tuple[Shape, float], _Planned | None] = metadata.prepared.setdefault(self.name, {})
        key = Shape.of(q, kv.k), scale
        if key not in found:
            found[key] = self._plan_call(metadata, *key, q.device) if self._takes(key[0]) else None
        return found[key]

    def _plan_call(
        self, metadata: AttentionMetadata, shape: Shape, scale: float, device: torch.device
    ) -> _Planned | None:
        used = [pair for pair in zip(metadata.rows, metadata.block_tables, strict=True) if pair[0]]
        if metadata.host_positions is None or not used:
            return None
        ranges, tables = zip(*used, strict=True)
        causal = mask_of(ranges, tables, metadata.host_positions.numpy())
        if causal is None:
            return None
        pages = Pages.of([len(rows) for rows in ranges], tables, causal=causal)
        return _Planned(self._plan_pages(pages, shape, scale, device), _joined(ranges, device))


def _joined(ranges: tuple[range, ...], device: torch.device) -> slice | Tensor:
    """All of them, one after another: a slice where they follow each other."""
    if all(before.stop == after.start for before, after in pairwise(ranges)):
        return slice(ranges[0].start, ranges[-1].stop)
    return torch.tensor([row for rows in ranges for row in rows]).to(device)
