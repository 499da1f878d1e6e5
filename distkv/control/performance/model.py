"""The performance model (001 §5.3): how long a step takes, by batch, context, and where the KV cache lies.

A decode step of β sequences with S tokens behind them takes T(β, S) = W(β)/f(β) + ΣS/g(S): the curves `step` and
`attention` of a profile, of all layers. Of K tokens that lie on a creditor a debtor's step saves the attention, K/g;
the creditor's takes that longer. What 001 leaves to overlap is counted here: in each layer queries go out, the local
attention is computed, then partials are waited for, so that remote time costs what it exceeds local time by.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from distkv.control.performance.curve import CurveFunction
from distkv.wire.messages.profile import LinkKind, LinkProfile, Profile

MOST_SERVING = 0.95
"""Most of its time that a creditor is predicted to serve: beyond that there is no rate that both keep."""

CROWDING_POWER = 0.75
"""Of the share of a step that reads weights: by 36 pairs of steps of 1 to 256 rows (docs/benchmarks/engine.md)."""


class Crowding(NamedTuple):
    """How many times as long a worker computes a step, and how many seconds it is longer to the next one."""

    times: float
    rest_s: float


UNCROWDED = Crowding(1.0, 0.0)


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an instance decodes. context_tokens: KV tokens of its batch, wherever they lie; remote_tokens: those of them
    on creditors, of remote_rows sequences."""

    batch: int
    context_tokens: int
    remote_tokens: int = 0
    remote_rows: int = 1


def traffic(weights_s: float, step_s: float) -> float:
    """How much a step of so many seconds is in the way of others of the host, when reading the weights takes weights_s
    of it: 1 for one sequence without context, less the more it computes with what it has read."""
    return float(min(1.0, weights_s / step_s) ** CROWDING_POWER)


class PerformanceModel:
    """Predictions for one instance by its profile. Pure; a call costs O(log points).

    Everywhere: link is what lies between it and its creditors; busy, whether those compute steps of their own, which
    makes own steps longer too where they share a host; beside, the traffic of those (`traffic`), as much as that of own
    steps if not given; creditor, their model, if it is not this one.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._step = CurveFunction(profile.step, of_work=False)
        self._remote_step = CurveFunction(profile.remote_step or profile.step, of_work=False)
        self._attention = CurveFunction(profile.attention, of_work=True)
        self._prefill = CurveFunction(profile.prefill, of_work=False)
        self._remote_prefill = CurveFunction(profile.remote_prefill or profile.prefill, of_work=False)
        self._prefill_attention = CurveFunction(profile.prefill_attention, of_work=False)
        self._serving = CurveFunction(profile.serving, of_work=True)
        self._serving_prefill = CurveFunction(profile.serving_prefill, of_work=False)

    # --- any step

    def base_s(self, decodes: int, chunk_tokens: int = 0, *, is_remote: bool = False) -> float:
        """Seconds of a step without attention and without waiting, by what it computes: decodes, and positions of
        chunks. is_remote: it sends queries.

        A step with chunks reads the weights of the layers once, for decodes and chunks; what a step of decodes takes
        longer than a chunk of as many rows, logits and samples, is theirs alone."""
        step, prefill = (self._remote_step, self._remote_prefill) if is_remote else (self._step, self._prefill)
        if not chunk_tokens:
            return step(decodes)
        rows_s = prefill(decodes + chunk_tokens)
        return rows_s + max(0.0, step(decodes) - prefill(decodes)) if decodes else rows_s

    def exchange_s(self, rows: int, *, link: LinkKind = "host", busy: bool = True, users: int = 1) -> float:
        """Seconds for queries of so many rows there and their partials back, in all layers, without any attention.
        users: who share the bandwidth of the link, this exchange included."""
        known = self.link(link)
        trip_s = max(known.round_trip_s, known.busy_round_trip_s) if busy else known.round_trip_s
        return self.profile.layers * trip_s + users * self.carry_s(rows, link)

    def traffic(self, step_s: float) -> float:
        """Of a step of so many seconds alone; see the function."""
        return traffic(self._step(1), step_s)

    def crowding(self, step_s: float, beside: float | None = None) -> Crowding:
        """Of a step that would take so long alone, while others of the host compute; they read what they compute with
        from the same memory. Chunks hardly slow each other down, decodes of few sequences the most."""
        own = self.traffic(step_s)
        times = 1.0 + (self.profile.crowded_times - 1.0) * own * (own if beside is None else beside)
        return Crowding(times, self.profile.crowded_step_s)

    def slowing_s(self, serving_s: float) -> float:
        """By how many seconds this instance's own steps take longer for one step of a debtor that it serves for so
        long."""
        return self.profile.serving_step_s + self.profile.serving_share * serving_s

    def link(self, kind: LinkKind) -> LinkProfile:
        """What lies between; the other kind where this one was not measured."""
        links = self.profile.links
        return links.get(kind) or next(iter(links.values()))

    # --- decode

    def step_s(
        self,
        batch: int,
        context_tokens: int,
        *,
        remote_tokens: int = 0,
        remote_rows: int = 1,
        served_tokens: int = 0,
        link: LinkKind = "host",
        busy: bool = True,
        beside: float | None = None,
        creditor: PerformanceModel | None = None,
    ) -> float:
        """Seconds of a decode step, T(β, S) (001, eq. 5 and 6).

        batch: sequences, at least 1. context_tokens: KV tokens behind them, wherever they lie. remote_tokens: those of
        them on creditors, of remote_rows sequences. served_tokens: tokens of debtors that it attends to meanwhile.
        """
        local_s = self.attention_s(context_tokens - remote_tokens)
        base_s = self.base_s(batch, is_remote=remote_tokens > 0)
        crowding = self.crowding(base_s + local_s, beside) if busy and link == "host" else UNCROWDED
        own_s = crowding.rest_s + crowding.times * base_s + self.served_s(served_tokens)
        if not remote_tokens:
            return own_s + crowding.times * local_s
        remote_s = self.remote_s(remote_tokens, remote_rows, link=link, busy=busy, creditor=creditor)
        return own_s + max(crowding.times * local_s, remote_s)

    def attention_s(self, tokens: int) -> float:
        """Seconds of a decode step's attention over so many local tokens, ΣS/g(S)."""
        return self._attention(tokens)

    def serving_s(self, tokens: int, *, busy: bool = True) -> float:
        """Seconds that this instance computes for a debtor's decode step with so many tokens here. busy: as above, of
        this instance."""
        return self._serving(tokens) * (self.profile.serving_busy_times if busy else 1.0)

    def served_s(self, tokens: int) -> float:
        """By how many seconds this instance's own steps take longer for one step of a debtor with so many tokens here;
        0 without any."""
        return self.slowing_s(self.serving_s(tokens)) if tokens else 0.0

    def kept_share(self, tokens: int, steps_per_s: float) -> float:
        """Of its own rate, what this instance keeps while it serves so many tokens of a debtor that makes so many steps
        each second: it serves once in each of them, and its own steps take that share of its time longer."""
        return 1.0 - min(MOST_SERVING, self.served_s(tokens) * steps_per_s)

    def remote_s(
        self,
        tokens: int,
        rows: int = 1,
        *,
        link: LinkKind = "host",
        busy: bool = True,
        creditor: PerformanceModel | None = None,
    ) -> float:
        """Seconds from queries to partials in all layers of a decode step, with so many tokens on a creditor: queries
        of so many rows there, attention, partials back."""
        there = self if creditor is None else creditor
        return self.exchange_s(rows, link=link, busy=busy) + there.serving_s(tokens, busy=busy)

    def tokens_per_s(
        self,
        load: Load,
        *,
        link: LinkKind = "host",
        busy: bool = True,
        beside: float | None = None,
        creditor: PerformanceModel | None = None,
    ) -> float:
        """Tokens that an instance with this load decodes each second (TPS of 001 §5.3); 0 without a batch."""
        if not load.batch:
            return 0.0
        step_s = self.step_s(
            load.batch,
            load.context_tokens,
            remote_tokens=load.remote_tokens,
            remote_rows=load.remote_rows,
            link=link,
            busy=busy,
            beside=beside,
            creditor=creditor,
        )
        return load.batch / step_s

    # --- prefill

    def prefill_s(self, num_tokens: int, context_tokens: int = 0) -> float:
        """Seconds to prefill so many tokens behind so many others, all local."""
        if not num_tokens:
            return 0.0
        return self.base_s(0, num_tokens) + self.chunk_attention_s(num_tokens, context_tokens)

    def chunk_attention_s(self, num_tokens: int, context_tokens: float) -> float:
        """Seconds of the attention of a chunk to itself and to so many tokens before it, all local."""
        return self._prefill_attention(num_tokens) * (context_tokens + (num_tokens + 1) / 2)

    def chunk_serving_s(self, num_tokens: int, tokens: int, *, busy: bool = True) -> float:
        """Seconds that this instance computes for a debtor's chunk of so many tokens, with so many others here. busy:
        as above, of this instance."""
        times = self.profile.serving_busy_times if busy else 1.0
        return times * self._serving_prefill(num_tokens) * tokens

    def ship_s(
        self,
        num_tokens: int,
        remote_tokens: int,
        *,
        local_tokens: int = 0,
        link: LinkKind = "host",
        busy: bool = True,
    ) -> float:
        """Seconds that so many remote tokens add to a prefill chunk if its queries travel (000 §4.6), in all layers: to
        the creditor, attention there, partials back, as far as that exceeds the attention over so many local ones; and
        what a chunk with creditors takes longer in itself."""
        if not num_tokens or not remote_tokens:
            return 0.0
        served_s = self.chunk_serving_s(num_tokens, remote_tokens, busy=busy)
        local_s = self._prefill_attention(num_tokens) * local_tokens
        asking_s = max(0.0, self._remote_prefill(num_tokens) - self._prefill(num_tokens))
        return asking_s + max(0.0, self.exchange_s(num_tokens, link=link, busy=busy) + served_s - local_s)

    def fetch_s(
        self, num_tokens: int, remote_tokens: int, *, fetched_tokens: int | None = None, link: LinkKind = "host"
    ) -> float:
        """Seconds that they add if keys and values travel: they are read, then attended to here. fetched_tokens: how
        many of them have to be read, where chunks before this one have read the others."""
        if not num_tokens or not remote_tokens:
            return 0.0
        read = remote_tokens if fetched_tokens is None else fetched_tokens
        known = self.link(link)
        bytes_ = self.profile.layers * self.profile.kv_bytes * read
        reading_s = known.round_trip_s + bytes_ / known.read_bytes_per_s if read else 0.0
        return reading_s + self._prefill_attention(num_tokens) * remote_tokens

    def carry_s(self, rows: int, link: LinkKind = "host") -> float:
        """Seconds that queries of so many rows and their partials take on the link in all layers: whoever sends and
        reads them does nothing else meanwhile, so that this part of shipping hides behind nothing."""
        profile = self.profile
        return profile.layers * rows * (profile.query_bytes + profile.partial_bytes) / self.link(link).bytes_per_s

    def carries_prompts(self, link: LinkKind) -> bool:
        """Whether a link takes no longer to carry the queries of a chunk, and their partials, than computing the chunk
        takes without attention. Else a prompt with keys behind that link takes more than twice as long, and whoever
        decodes beside it waits as long in each step."""
        rows = self.profile.prefill[-1].size
        return self.carry_s(rows, link) <= self.base_s(0, rows)
