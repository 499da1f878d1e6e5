"""Measures a profile with a debtor and a creditor: chunks and links first, then decode steps by turns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distkv.bench.harness.command import Say
from distkv.bench.profiling.chunks import Chunked, Chunks
from distkv.bench.profiling.decoding import Decoded, Decoding
from distkv.bench.profiling.engine import Engine
from distkv.bench.profiling.fitting import curve_of
from distkv.bench.profiling.plan import Budget, Sizes
from distkv.bench.profiling.turns import Case, Turns
from distkv.wire.messages.profile import LinkKind, LinkProfile, Point, Profile

CHUNKS_SHARE, LINKS_SHARE = 0.2, 0.25
"""Of the time: until chunks are measured, and links."""


class Shape(msgspec.Struct, frozen=True):
    """What profiles say of a model: its name and layers, bytes in one layer of a row and of a token, and its longest
    context."""

    model: str
    layers: int
    query_bytes: int
    partial_bytes: int
    kv_bytes: int
    most_tokens: int


class Measuring:
    """The measurements of one profile. The creditor lends its first lent_blocks rBlocks; its own lie behind them."""

    def __init__(self, debtor: Engine, creditor: Engine, shape: Shape, sizes: Sizes, budget: Budget, say: Say) -> None:
        self.sizes, self.block_tokens = sizes, debtor.ready.block_tokens
        self._debtor, self._creditor, self._shape, self._budget = debtor, creditor, shape, budget
        lent_blocks = max(sizes.first_tokens + sizes.remote_tokens) // self.block_tokens
        self._lent_blocks = lent_blocks
        self._chunks = Chunks(debtor, creditor, sizes, lent_blocks, budget, say)
        self.turns = Turns(debtor, creditor, sizes, lent_blocks, budget, say)

    async def profile(self, besides: Sequence[Case] = ()) -> Profile:
        """All of it. besides: what else is decoded by the same turns, for nothing is fitted through it."""
        self._creditor.grant(self._lent_blocks)
        await self._debtor.link(self._creditor, by_network=False)
        self._budget.stage(CHUNKS_SHARE)
        chunked = await self._chunks.measure()
        self._budget.stage(LINKS_SHARE)
        read_bytes_per_s = await self._chunks.read_bytes_per_s()
        network = await self._chunks.by_network(self._shape.layers, max(chunked.remote))
        self._budget.stage(1.0)
        decoding = Decoding(self.sizes, self.block_tokens)
        await self.turns.take(decoding.needed, (*decoding.others, *besides))
        decoded = decoding.fit(self.turns)
        bytes_per_s = self._row_bytes / self._row_s(chunked) if self._row_s(chunked) > 0 else read_bytes_per_s
        host = LinkProfile(
            round_trip_s=self._round_trip_s(decoded.idle.trip_s, bytes_per_s),
            bytes_per_s=bytes_per_s,
            read_bytes_per_s=read_bytes_per_s,
            busy_round_trip_s=self._round_trip_s(decoded.busy.trip_s, bytes_per_s),
        )
        by_network = LinkProfile(
            round_trip_s=host.round_trip_s + network.first_s,
            bytes_per_s=self._row_bytes / (self._row_bytes / bytes_per_s + network.row_s),
            read_bytes_per_s=network.read_bytes_per_s,
            busy_round_trip_s=host.busy_round_trip_s + network.first_s,
        )
        return self._made(decoded, chunked, {"host": host, "network": by_network})

    @property
    def _row_bytes(self) -> int:
        return self._shape.query_bytes + self._shape.partial_bytes

    def _row_s(self, chunked: Chunked) -> float:
        """Of one more row of queries and partials in a layer; 0 where no chunk is long enough to tell."""
        trips = [(tokens, remote.trip_s) for tokens, remote in chunked.remote.items()]
        (rows, last_s), (first, first_s) = max(trips), min(trips)
        return max(0.0, last_s - first_s) / max(1, rows - first) / self._shape.layers

    def _round_trip_s(self, trip_s: float, bytes_per_s: float) -> float:
        """Of a layer, without the one row."""
        return max(0.0, trip_s / self._shape.layers - self._row_bytes / bytes_per_s)

    def _made(self, decoded: Decoded, chunked: Chunked, links: dict[LinkKind, LinkProfile]) -> Profile:
        shape, most = self._shape, max(self.sizes.remote_tokens)
        return Profile(
            model=shape.model, device="", layers=shape.layers, block_tokens=self.block_tokens,
            query_bytes=shape.query_bytes, partial_bytes=shape.partial_bytes, kv_bytes=shape.kv_bytes,
            step=decoded.step, attention=decoded.attention, remote_step=decoded.remote_step,
            prefill=curve_of(chunked.alone.items()), prefill_attention=curve_of(chunked.each.items()),
            remote_prefill=curve_of(chunked.asking.items()),
            serving=(Point(most, decoded.idle.token_s * most),),
            serving_prefill=curve_of((tokens, remote.token_s) for tokens, remote in chunked.remote.items()),
            links=links, serving_busy_times=max(1.0, decoded.busy.token_s / decoded.idle.token_s),
            serving_share=decoded.serving_share, serving_step_s=decoded.serving_step_s,
            crowded_times=decoded.crowded_times, crowded_step_s=decoded.crowded_step_s,
            serves=self._debtor.ready.serves,
        )  # fmt: skip
