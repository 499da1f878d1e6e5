"""The contract of a device's kernels: every backend keeps it, and passes the same tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.layout import LayerKv
from distkv.kernels.attention.merge import Partial
from distkv.kernels.attention.static_decode import StaticDecode, StaticInputs
from distkv.kernels.exchange import Exchanges
from distkv.kernels.layer.fused_qkv import FusedQkv
from distkv.kernels.layer.layer_tail import LayerTail, LayerTailWeights, StepwiseLayerTail
from distkv.kernels.layer.layers import Layer, Layers
from distkv.kernels.layer.linear import Linear, TorchLinear
from distkv.kernels.layer.ops import Ops, TorchOps
from distkv.kernels.mail_table import MailField, MailTable, asked_lines, partial_lane, query_lane
from distkv.kernels.mailbox import Lane, post, take


class Backend(ABC):
    """All kernels of one device. Safe to call from several threads.

    A backend has to have attention, merge and store over pools in its `layout`; for the rest it inherits torch's
    functions, which run on any device, and replaces those that it has better ones for.

    name: for logs and benchmarks. has_fp8: whether keys and values may be stored as float8 (e4m3). static_keys: the
    lengths, ascending, up to which `static_decode` has a kernel of its own; none where it has none at all, for
    `why_not_static`.
    """

    name: str
    layout: type[LayerKv]
    has_fp8: bool = False
    static_keys: tuple[int, ...] = ()
    why_not_static: str = "its attention depends on the keys of each step"
    ops: Ops = TorchOps()

    @abstractmethod
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
        """Attention of queries over the keys of the block tables, as partials (000 §4.2); see `reference`.

        q: [N, Hq, D], float32, bfloat16 or float16. window, alibi: see `reference`; alibi is float32.
        serving: for a peer, which goes before the own step.

        Returns float32 (out [R, Hq, D], lse [R, Hq]), range by range of `metadata.rows`, R rows in all.
        """

    @abstractmethod
    def merge(self, partials: Sequence[Partial]) -> Partial:
        """See `merge.merge`; float32."""

    @abstractmethod
    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        """Norm and rotate queries and keys, and store keys and values; returns the queries, [N, Hq, D].

        slots, offsets: int64 [N], the block of each token and its place in it.
        """

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """What computes with W [out, in] and bias [out]; it keeps W, or a copy in an order of its own."""
        return TorchLinear(weight, bias)

    def linear_name(self, dtype: torch.dtype) -> str:
        """Whose linear layers these are, for weights of a dtype; for logs and benchmarks."""
        return "torch"

    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [N, vocab] in float32; int64 [N], the token of the largest of each row, of equals the first, where
        what is no number is larger than all; and int64 [N], the same tokens, but vocab where that logit is not finite.
        """
        wide = logits.float()
        found = wide.max(-1)
        return wide, found.indices, torch.where(found.values.abs() < torch.inf, found.indices, wide.shape[-1])

    def layer_tail(self, weights: LayerTailWeights) -> LayerTail:
        """The tail of one layer."""
        return StepwiseLayerTail(weights, self.ops)

    def layers_of(self, layers: Sequence[Layer], scale: float) -> Layers | None:
        """All layers of a model in one call, where all keys lie in one pool; None where there is no such kernel.

        scale: of attention scores.
        """
        return None

    def exchanges(
        self, kvs: Sequence[LayerKv], windows: Sequence[int | None], scale: float, heads: int, q_dtype: torch.dtype
    ) -> Exchanges | None:
        """Attention over keys here and elsewhere as one call per layer, for the layers of one pool; None where there is
        no such kernel. heads: of queries."""
        return None

    def static_decode(self, inputs: StaticInputs, kv: LayerKv, most_keys: int) -> StaticDecode:
        """Decode that a graph can hold, over layers like `kv`, for rows of up to most_keys keys, which is one of
        `static_keys`. Only where that has any."""
        raise NotImplementedError(f"{self.name} has no decode of fixed launches")

    def use_threads(self, threads: int, cores: Sequence[int]) -> None:
        """Compute with so many threads of the host, each on one of the cores if there are any."""
        torch.set_num_threads(threads)

    def warm_up(self, num_heads: int, kv: LayerKv, dtype: torch.dtype, windows: Collection[int | None]) -> int:
        """Make ready whatever attention of such queries over such layers can need, in the current stream: what has to
        be compiled is compiled now. windows: of all layers. It may read the first block of `kv` and writes to none.
        Returns how many launches that took."""
        return 0

    def gather_blocks(self, pool: Tensor, slots: Tensor) -> Tensor:
        """rBlocks of a pool, one after the other, uint8 [n, bytes]. pool: uint8 [num_slots, bytes]. slots: int64 [n],
        on the pool's device."""
        return pool[slots]

    def scatter_blocks(self, staging: Tensor, pool: Tensor, slots: Tensor) -> None:
        """The reverse of `gather_blocks`: row i of staging to rBlock slots[i]. No slot twice."""
        pool[slots] = staging

    def copy_blocks(self, source: Tensor, source_slots: Tensor, pool: Tensor, slots: Tensor) -> None:
        """rBlock source_slots[i] of another pool, which this device reaches, to rBlock slots[i]. No slot twice in
        `slots`. Both pools and slots as in `gather_blocks`."""
        pool[slots] = source[source_slots]

    def has_checksums(self, num_bytes: int) -> bool:
        """Whether there is a kernel for checksums of rBlocks of so many bytes."""
        return False

    def checksum_blocks(self, pool: Tensor, slots: Tensor) -> Tensor:
        """Where it `has_checksums`: the sums of xxh3 over rBlocks of a pool, int64 [n, 8] for `checksum.checksums_of`.
        pool, slots: as in `gather_blocks`."""
        raise NotImplementedError(f"{self.name} has no checksums of rBlocks")

    def post(self, lane: Lane, number: int, *tensors: Tensor) -> None:
        """See `mailbox.post`. Tensors on the device, contiguous, of whole four-byte words; one or two."""
        post(lane, number, *tensors)

    def take(self, lane: Lane, number: int, *tensors: Tensor, limit_s: float) -> None:
        """See `mailbox.take`, likewise."""
        take(lane, number, *tensors, limit_s=limit_s)

    def post_all(self, table: MailTable, layer: int, q: Tensor) -> None:
        """`post` to each creditor its rows of the queries of a layer, [N, Hq, D]. Captured, it reads the table at each
        replay. Here memory of the table and of all lanes is the host's."""
        for fields, rows in asked_lines(table):
            queries = q[rows].contiguous()
            self.post(query_lane(fields, queries.nbytes), fields[MailField.FIRST] + layer, queries)

    def take_all(self, table: MailTable, layer: int, out: Tensor, lse: Tensor) -> None:
        """`take` from each creditor its partials of a layer, into its rows of out, float32 [R, Hq, D], and lse, float32
        [R, Hq]; likewise."""
        for fields, _rows in asked_lines(table):
            first, count = fields[MailField.FIRST_PARTIAL], fields[MailField.PARTIAL_ROWS]
            into = out[first : first + count], lse[first : first + count]
            lane = partial_lane(fields, into[0].nbytes + into[1].nbytes)
            number = fields[MailField.FIRST] + layer
            self.take(lane, number, *into, limit_s=fields[MailField.LIMIT_NS] / 1e9)
