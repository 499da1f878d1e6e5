"""What a Step is to an engine: decodes, chunks of prompts, and attention at creditors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from distkv.control.performance.model import UNCROWDED, Crowding, PerformanceModel
from distkv.wire.messages.profile import Profile
from distkv.wire.messages.to_worker import SeqStep

Name = TypeVar("Name")
Ships = Callable[[str, int, int, int], bool]
"""Whether a chunk's queries travel to a creditor, rather than keys to them: creditor, rows of the chunk, tokens there,
and its tokens that lie here."""


@dataclass(slots=True)
class Ask:
    """What a step needs of one creditor. rows: queries that travel there. decode_tokens: those that decodes attend to
    there. chunk_s: seconds of attention there for chunks. fetched_tokens: those that are read for chunks. spans: where
    all that lies. seqs: indices of the sequences that need it."""

    rows: int = 0
    decode_tokens: int = 0
    chunk_s: float = 0.0
    fetched_tokens: int = 0
    spans: dict[str, None] = field(default_factory=dict)
    seqs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class StepWork:
    """decodes: sequences that compute one position. context_tokens: what they attend to here. chunk_tokens: positions
    of chunks. chunk_attention_s: seconds of their attention here, over what they fetch too. asks: by creditor."""

    decodes: int = 0
    context_tokens: int = 0
    chunk_tokens: int = 0
    chunk_attention_s: float = 0.0
    asks: dict[str, Ask] = field(default_factory=dict)

    def ahead(self, positions: int) -> StepWork:
        """The same decodes, so many positions further."""
        if not positions:
            return self
        context_tokens = self.context_tokens + positions * self.decodes
        return StepWork(self.decodes, context_tokens, self.chunk_tokens, self.chunk_attention_s, self.asks)


class StepTimes:
    """Seconds of an engine's work by its profile."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.model = PerformanceModel(profile)

    def work_of(self, seqs: Sequence[SeqStep], ships: Ships) -> StepWork:
        """What sequences of a Step ask of the engine."""
        work = StepWork()
        for index, seq in enumerate(seqs):
            if seq.end - seq.start > 1:
                self._add_chunk(work, index, seq, ships)
            else:
                self._add_decode(work, index, seq)
        return work

    def base_s(self, work: StepWork) -> float:
        """All but attention."""
        return self.model.base_s(work.decodes, work.chunk_tokens, is_remote=bool(work.asks))

    def attention_s(self, work: StepWork) -> float:
        """Attention here."""
        return self.model.attention_s(work.context_tokens) + work.chunk_attention_s

    def chunk_attention_s(self, start: int, end: int) -> float:
        """Attention of a chunk of a prompt of which all keys lie here."""
        return self.model.chunk_attention_s(end - start, start)

    def crowding(self, work: StepWork, traffic: dict[Name, float], own: Name) -> Crowding:
        """Of a step that begins, by the others of the host that compute one; its own traffic is put among theirs."""
        traffic.pop(own, None)
        step_s = self.base_s(work) + self.attention_s(work)
        crowding = self.model.crowding(step_s, max(traffic.values())) if traffic else UNCROWDED
        traffic[own] = self.model.traffic(step_s)
        return crowding

    def serving_s(self, ask: Ask, *, busy: bool) -> float:
        """Of a creditor with this profile, for one step of a debtor. busy: whether it computes steps of its own."""
        chunk_s = ask.chunk_s * (self.profile.serving_busy_times if busy else 1.0)
        return self.model.serving_s(ask.decode_tokens, busy=busy) + chunk_s

    def _add_decode(self, work: StepWork, index: int, seq: SeqStep) -> None:
        work.decodes += 1
        local_tokens = seq.end
        for creditor, tokens in self._remote(work, index, seq).items():
            ask = work.asks[creditor]
            ask.rows += 1
            ask.decode_tokens += tokens
            local_tokens -= tokens
        work.context_tokens += local_tokens

    def _add_chunk(self, work: StepWork, index: int, seq: SeqStep, ships: Ships) -> None:
        rows = seq.end - seq.start
        remote = self._remote(work, index, seq)
        local_tokens = seq.start - sum(remote.values())
        here = local_tokens
        for creditor, tokens in remote.items():
            ask = work.asks[creditor]
            if ships(creditor, rows, tokens, local_tokens):
                ask.rows += rows
                ask.chunk_s += self.model.chunk_serving_s(rows, tokens, busy=False)
            else:
                ask.fetched_tokens += tokens
                here += tokens
        work.chunk_tokens += rows
        work.chunk_attention_s += self.model.chunk_attention_s(rows, here)

    def _remote(self, work: StepWork, index: int, seq: SeqStep) -> dict[str, int]:
        """Tokens by creditor."""
        found: dict[str, int] = {}
        for part in seq.remote:
            tokens = part.num_blocks * self.profile.block_tokens
            found[part.instance_id] = found.get(part.instance_id, 0) + tokens
            ask = work.asks.setdefault(part.instance_id, Ask())
            ask.spans[part.span.span_id] = None
        for creditor in found:
            work.asks[creditor].seqs.append(index)
        return found
