"""What a modelled engine does beside its steps: it pulls blocks from peers and computes checksums."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from distkv.checksums import pack
from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.engine.serving import SpanBook
from distkv.sim.timed.links import Links
from distkv.wire.messages.from_worker import Checksummed, Pulled
from distkv.wire.messages.profile import Profile
from distkv.wire.messages.to_worker import Checksum, Pull


class Peer(Protocol):
    """An engine, as far as others pull from it."""

    instance_id: str
    spans: SpanBook

    def is_there(self, incarnation: int) -> bool:
        """Whether this process lives, and is the one that is meant."""
        ...


class Transfers:
    """Of one engine. Checksums are computed in order; of each source one pull goes on at a time. read_bytes: that were
    pulled."""

    def __init__(
        self,
        engine: Peer,
        profile: Profile,
        agenda: Agenda,
        links: Links,
        engines: Mapping[str, Peer],
        reply: Callable[[Checksummed | Pulled], None],
    ) -> None:
        self.read_bytes = 0
        self._engine, self._agenda, self._links, self._engines, self._reply = engine, agenda, links, engines, reply
        self._block_bytes = profile.layers * profile.kv_bytes * profile.block_tokens
        self._memory_bytes_per_s = max(link.read_bytes_per_s for link in profile.links.values())
        self._summed_at = 0.0
        self._pulls: dict[str, deque[Pull]] = {}

    def checksum(self, wanted: Checksum) -> None:
        """One pass over these blocks, as fast as blocks are read where that is fastest."""
        took_s = len(wanted.slots) * self._block_bytes / self._memory_bytes_per_s
        self._summed_at = max(self._agenda.now(), self._summed_at) + took_s
        answer = Checksummed(checksum_id=wanted.checksum_id, checksums=pack(wanted.slots))
        self._agenda.at(self._summed_at, lambda: self._reply(answer))

    def pull(self, pull: Pull) -> None:
        """Read blocks from a peer, when those before them have come."""
        pulls = self._pulls.setdefault(pull.source_id, deque())
        pulls.append(pull)
        if len(pulls) == 1:
            self._begin(pulls)

    def _begin(self, pulls: deque[Pull]) -> None:
        pull = pulls[0]
        if problem := self._problem(pull):
            self._agenda.after(0.0, lambda: self._end(pulls, problem))
            return
        if pull.span is not None:
            self._engine.spans.pin((pull.span.span_id,))
        num_bytes = len(pull.slots) * self._block_bytes
        self._links.read(self._engine.instance_id, pull.source_id, num_bytes, lambda: self._read(pulls, num_bytes))

    def _read(self, pulls: deque[Pull], num_bytes: int) -> None:
        pull = pulls[0]
        problem = self._gone(pull)
        if not problem:
            self.read_bytes += num_bytes
        self._end(pulls, problem)
        if pull.span is not None:
            self._engine.spans.unpin((pull.span.span_id,))

    def _end(self, pulls: deque[Pull], problem: str) -> None:
        self._reply(Pulled(pull_id=pulls.popleft().pull_id, problem=problem))
        if pulls:
            self._begin(pulls)

    def _problem(self, pull: Pull) -> str:
        if pull.span is not None and not self._engine.spans.has(pull.span):
            return "the span is gone"
        return self._gone(pull)

    def _gone(self, pull: Pull) -> str:
        source = self._engines.get(pull.source_id)
        return "" if source is not None and source.is_there(pull.source_incarnation) else "the source is gone"
