"""What steps of a modelled engine lose at creditors, and what is answered for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from distkv.sim.timed.engine.one_step import Running
from distkv.sim.timed.engine.serving import SpanBook
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw

TOKEN = 1
"""What is sampled, always."""


class Creditor(Protocol):
    """An engine, as far as others attend to its spans."""

    spans: SpanBook

    def is_there(self, incarnation: int) -> bool:
        """Whether this process lives, and is the one that is meant."""
        ...


class Losses:
    """Of one engine. A sequence that has lost something computes nothing more in that attempt."""

    def __init__(self, engines: Mapping[str, Creditor]) -> None:
        self._engines = engines
        self._attempt: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether anything is lost that matters."""
        return bool(self._attempt)

    def forget(self, request_ids: Iterable[str]) -> None:
        """What was lost of these does not matter any more."""
        for request_id in request_ids:
            self._attempt.pop(request_id, None)

    def without(self, seqs: Iterable[tw.SeqStep]) -> list[tw.SeqStep]:
        """Those that have lost nothing."""
        return [seq for seq in seqs if self._attempt.get(seq.request_id, -1) < seq.attempt]

    def find(self, running: Running) -> None:
        """Note in a step the sequences of which something lies where it cannot be read."""
        for creditor_id, ask in running.work.asks.items():
            creditor = self._engines.get(creditor_id)
            for index in ask.seqs:
                for part in running.known.seqs[index].remote:
                    if part.instance_id == creditor_id and (
                        creditor is None
                        or not creditor.is_there(part.span.epoch.incarnation)
                        or not creditor.spans.is_readable(part)
                    ):
                        running.lost.setdefault(index, set()).add(creditor_id)

    def results(self, running: Running) -> tuple[fw.SeqResult, ...]:
        """What is answered for a step that ends."""
        known = running.known
        if running.lost or self._attempt:
            lost = {known.seqs[index].request_id: names for index, names in running.lost.items()}
            return tuple(self._result(seq, lost) for seq in known.step.seqs)
        if not known.results:
            known.results = tuple(self._result(seq, {}) for seq in known.step.seqs)
        return known.results

    def _result(self, seq: tw.SeqStep, lost: Mapping[str, set[str]]) -> fw.SeqResult:
        name, attempt = seq.request_id, seq.attempt
        if self._attempt.get(name, -1) >= attempt:
            return fw.SeqResult(request_id=name, attempt=attempt, status="void")
        if name in lost:
            self._attempt[name] = attempt
            return fw.SeqResult(request_id=name, attempt=attempt, status="lost", lost=tuple(sorted(lost[name])))
        token = None if seq.sample is None else TOKEN
        return fw.SeqResult(request_id=name, attempt=attempt, status="ok", token=token)
