"""Engines whose times follow a law, so that what was measured of them can be compared with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from distkv.bench.profiling.engine import Engine, Enough, Took
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.from_worker import WorkerReady
from distkv.wire.messages.to_worker import SeqStep

MS, US = 1e-3, 1e-6
BLOCK = 16
LAYERS = 4
Disturbed = Callable[[], float]


class Law(msgspec.Struct, kw_only=True):
    """Seconds of all layers. more_s: of batches of a size, besides what grows with it. trip_s: of queries and partials,
    without rows; network_s: more of it by network. share: of a creditor's serving time that its own steps take
    longer. crowd_times: a step of one sequence beside one like it; others less (`traffic`). beside_s: the step that the
    creditor makes beside the debtor's, alone. debtor_traffic: of the debtor's last step."""

    step_s: float = 10 * MS
    sequence_s: float = 0.5 * MS
    more_s: Mapping[int, float] = msgspec.field(default_factory=dict)
    token_s: float = 2 * US
    asking_s: float = 3 * MS
    prefill_token_s: float = 1 * MS
    pair_s: float = 0.1 * US
    trip_s: float = 0.4 * MS
    row_s: float = 4 * US
    busy_trip_s: float = 0.6 * MS
    network_s: float = 1 * MS
    served_token_s: float = 3 * US
    served_pair_s: float = 0.3 * US
    busy_times: float = 1.5
    share: float = 0.5
    serving_step_s: float = 0.3 * MS
    crowd_times: float = 1.3
    crowd_step_s: float = 0.7 * MS
    is_beside: bool = False
    is_busy: bool = False
    by_network: bool = False
    serving_s: float = 0.0
    beside_s: float = 0.0
    debtor_s: float = 1.0
    debtor_traffic: float = 0.0
    now_times: float = 1.0

    def step(self, seqs: Sequence[SeqStep]) -> tuple[float, float, float]:
        """Of a debtor's step, a decode or a prefill chunk: what it takes, what of that it waits, and what is computed
        or waited."""
        remote = sum(span.num_blocks for seq in seqs for span in seq.remote) * BLOCK
        rows = sum(seq.end - seq.start for seq in seqs)
        if seqs[0].sample is not None:
            alone_s = self._decode_s(len(seqs))
            local_s = self.token_s * (sum(seq.start for seq in seqs) - remote)
            served_s = self.served_token_s * remote
        else:
            (seq,) = seqs
            alone_s = self.step_s + self.prefill_token_s * rows
            local_s = self._key_s(rows) * (seq.start - remote + (rows + 1) / 2)
            served_s = (self.served_token_s + self.served_pair_s * rows) * remote
        self.is_beside = self.is_busy
        alone_s += self.asking_s if remote else 0.0
        self.debtor_traffic = self.traffic(alone_s + local_s + self._wait_s(seqs, served_s, local_s, is_busy=False))
        if self.is_busy:
            times = self._crowding(alone_s + local_s, self.traffic(self.beside_s))
            alone_s, local_s, served_s = times * alone_s, times * local_s, served_s * self.busy_times
        wait_s = self._wait_s(seqs, served_s, local_s, is_busy=self.is_busy)
        compute_s = alone_s + local_s + wait_s
        step_s = compute_s + (self.crowd_step_s if self.is_busy else 0.0)
        self.serving_s, self.debtor_s = served_s if remote and self.is_busy else 0.0, step_s
        return step_s, wait_s, compute_s

    def creditor_alone_s(self, seqs: Sequence[SeqStep]) -> float:
        """Of a creditor's own step, nothing beside it."""
        return self._decode_s(len(seqs)) + self.token_s * sum(seq.start for seq in seqs)

    def traffic(self, step_s: float) -> float:
        """Of a step that takes so long alone."""
        return min(1.0, (self.step_s + self.sequence_s) / step_s) ** 0.75

    def own_s(self, seqs: Sequence[SeqStep]) -> tuple[float, float]:
        """Of a creditor's step beside what it serves, and what of it is computed."""
        alone_s = self.creditor_alone_s(seqs)
        if self.is_beside:
            alone_s *= self._crowding(alone_s, self.debtor_traffic)
        rest_s = self.crowd_step_s if self.is_beside else 0.0
        lost_s = self.share * self.serving_s + self.serving_step_s if self.serving_s else 0.0
        step_s = (alone_s + rest_s) / (1 - lost_s / self.debtor_s)
        return step_s, step_s - rest_s

    def _crowding(self, step_s: float, beside: float) -> float:
        return 1.0 + (self.crowd_times - 1.0) * self.traffic(step_s) * beside

    def _wait_s(self, seqs: Sequence[SeqStep], served_s: float, local_s: float, *, is_busy: bool) -> float:
        first = next((seq for seq in seqs if seq.remote), None)
        if first is None:
            return 0.0
        trip_s = self.trip_s + self.network_s * self.by_network + self.busy_trip_s * is_busy
        return max(0.0, trip_s + self.row_s * (first.end - first.start) + served_s - local_s)

    def _decode_s(self, batch: int) -> float:
        return self.step_s + self.sequence_s * batch + self.more_s.get(batch, 0.0)

    def _key_s(self, rows: int) -> float:
        return self.token_s + self.pair_s * rows


class LawEngine:
    """One end of the law. timed: how many steps were timed. disturbed: how many times as long one takes, by turns."""

    def __init__(self, name: str, law: Law, disturbed: Disturbed, *, is_creditor: bool) -> None:
        self.name, self._law, self._disturbed, self._is_creditor = name, law, disturbed, is_creditor
        self.timed = 0
        self.ready = WorkerReady(
            pid=1, compat="c", data=DataEndpoint(address="a:1", slot_bytes=LAYERS * BLOCK * 256, num_slots=4096),
            block_tokens=BLOCK, num_slots=4096, eos_token_ids=(), vocab_size=8, max_positions=65536,
            serves="model m/1, dtype float32",
        )  # fmt: skip

    async def time(self, seqs: Sequence[SeqStep], enough: Enough) -> tuple[Took, ...]:
        self.timed += 1
        if not self._is_creditor:
            for _ in range(5):  # a creditor that decodes beside it begins
                await asyncio.sleep(0)
            step_s, wait_s, compute_s = self._law.step(seqs)
            times = self._law.now_times = self._disturbed()
            return (Took(1.0, times * step_s, times * wait_s, times * compute_s),)
        steps = 0
        self._law.is_busy, self._law.beside_s = True, self._law.creditor_alone_s(seqs)
        try:
            while not enough(steps, float(steps)):
                steps += 1
                await asyncio.sleep(0)
            is_alone = not self._law.is_beside
            times = self._disturbed() if is_alone else self._law.now_times
            step_s, compute_s = self._law.own_s(seqs)
        finally:
            self._law.is_busy, self._law.is_beside, self._law.serving_s = False, False, 0.0
        own = Took(0.0, times * step_s, 0.0, times * compute_s)
        return (own,) if is_alone else (own, Took(2.0, 9.0, 0.0, 9.0))  # the debtor's have ended before the second

    def grant(self, num_blocks: int) -> None:
        assert self._is_creditor and num_blocks > 0

    async def link(self, creditor: LawEngine, *, by_network: bool) -> None:
        assert creditor is not self
        self._law.by_network = by_network

    async def read(self, creditor: LawEngine, num_blocks: int, first_slot: int) -> float:
        return 1e9


def pair(law: Law, disturbed: Disturbed = lambda: 1.0) -> tuple[Engine, Engine]:
    """A debtor and its creditor under one law."""
    made: list[Any] = [
        LawEngine(name, law, disturbed, is_creditor=name == "creditor") for name in ("debtor", "creditor")
    ]
    return cast(tuple[Engine, Engine], tuple(made))
