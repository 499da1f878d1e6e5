"""The live sequences of one instance: the one door by which they come, change their state, and go.

Whoever looks for some of them asks an index that is kept here, so that no event looks at all that wait.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sized
from itertools import chain

from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.schedule.admission.age_order import AgeOrder
from distkv.control.schedule.admission.waiting import WaitingQueue
from distkv.control.timers import Timers


class Sequences(MutableMapping[str, Sequence]):
    """Sequences by the id of their request.

    running: those in the batch, oldest first. acquiring: those a borrow is under way for. queue: all that do not run.
    deadlines: by when they must have ended. touched: those whose memory has changed otherwise than by admission, so
    that their places must be looked at. changes: how often the state of any changed. batch_changes: how often one began
    or ceased to run.
    """

    def __init__(self, patience_s: float) -> None:
        self._all: dict[str, Sequence] = {}
        self._of_route: dict[bytes, dict[str, Sequence]] = {}
        self.running = AgeOrder()
        self.acquiring = AgeOrder()
        self.queue = WaitingQueue(patience_s)
        self.deadlines: Timers[str] = Timers()
        self.touched: dict[str, Sequence] = {}
        self.changes = 0
        self.batch_changes = 0
        self._batch_changed: list[Sequence] = []

    def __getitem__(self, request_id: str) -> Sequence:
        return self._all[request_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __setitem__(self, request_id: str, seq: Sequence) -> None:
        """Take in one that waits."""
        assert request_id == seq.request_id and request_id not in self._all and seq.state is SeqState.WAITING
        self._all[request_id] = seq
        self._of_route.setdefault(seq.request.route, {})[request_id] = seq
        if seq.request.deadline is not None:
            self.deadlines.set(request_id, seq.request.deadline)
        self.queue.stopped(seq)
        self.queue.add(seq)
        self.changes += 1

    def __delitem__(self, request_id: str) -> None:
        """Let one go; what it holds is the caller's to give back."""
        seq = self._all.pop(request_id)
        of_route = self._of_route[seq.request.route]
        del of_route[request_id]
        if not of_route:
            del self._of_route[seq.request.route]
        self.deadlines.cancel(request_id)
        self.touched.pop(request_id, None)
        self._leave(seq)
        if seq.state is not SeqState.RUNNING:
            self.queue.started(seq)

    def holding(self) -> Iterator[Sequence]:
        """Those that may hold memory: few, for memory is."""
        return chain(self.running, self.acquiring, self.queue.resuming)

    @property
    def num_waiting(self) -> int:
        """Those that do not run."""
        return len(self._all) - len(self.running)

    @property
    def is_memory_awaited(self) -> bool:
        """Somebody does not run who could; who starves takes no memory before more of it lives."""
        return self.num_waiting > self.queue.num_starving

    def count_tokens(self) -> tuple[int, int]:
        """KV tokens of those that run, wherever they lie, and tokens that are to be computed before all of them
        decode."""
        context_tokens, prefill_tokens = 0, self.queue.unplaced_tokens
        for seq in self.running:
            if seq.is_decoding:
                context_tokens += seq.length - 1
            else:
                context_tokens += seq.num_computed
                prefill_tokens += seq.num_uncomputed
        for seq in chain(self.acquiring, self.queue.resuming):
            if not seq.is_decoding:
                prefill_tokens += seq.num_uncomputed
        return context_tokens, prefill_tokens

    def of_route(self, route: bytes) -> dict[str, Sequence]:
        """Those that came by this route, by name, in this order; the caller's to change."""
        return self._of_route.get(route, {}).copy()

    # --- their states

    def run(self, seq: Sequence) -> None:
        """It has all it needs."""
        self._leave(seq)
        self.queue.started(seq)
        seq.enter(SeqState.RUNNING)
        self.running.add(seq)
        self._batch_has_changed(seq)
        if seq.placement.unsettled:
            self.touch(seq)

    def acquire(self, seq: Sequence) -> None:
        """A borrow for it is under way."""
        self._leave(seq)
        seq.enter(SeqState.ACQUIRING)
        self.acquiring.add(seq)

    def wait(self, seq: Sequence, retry_at: float, retries: int = 0) -> None:
        """It must wait, until `retry_at` at least; it holds nothing but what it would resume with."""
        self._leave(seq)
        if seq.state is SeqState.RUNNING:
            self.queue.stopped(seq)
        seq.enter(SeqState.WAITING, retry_at, retries)
        self.queue.add(seq)

    def spare_has_changed(self, seq: Sequence) -> None:
        """A sequence has fewer places at creditors to grow into."""
        if seq.state is SeqState.RUNNING:
            self._batch_changed.append(seq)

    def take_batch_changes(self) -> list[Sequence]:
        """Those that began or ceased to run since the last call, or have fewer places at creditors to grow into; some
        may have done all of it."""
        changed, self._batch_changed = self._batch_changed, []
        return changed

    def touch(self, seq: Sequence) -> None:
        """Blocks of it may have lost their place, or be ready to leave."""
        if self._all.get(seq.request_id) is seq:
            self.touched[seq.request_id] = seq

    def take_touched(self) -> dict[str, Sequence]:
        """Those that were touched since the last call; the queue knows now what they would resume with."""
        touched, self.touched = self.touched, {}
        for seq in touched.values():
            if seq.state is SeqState.WAITING:
                self.wait(seq, seq.retry_at, seq.retries)
        return touched

    def _batch_has_changed(self, seq: Sequence) -> None:
        self.batch_changes += 1
        self._batch_changed.append(seq)

    def _leave(self, seq: Sequence) -> None:
        self.changes += 1
        if seq.state is SeqState.RUNNING:
            self.running.remove(seq)
            self._batch_has_changed(seq)
        elif seq.state is SeqState.ACQUIRING:
            self.acquiring.remove(seq)
        else:
            self.queue.remove(seq)

    def validate(self) -> None:
        """Every index is what looking at all sequences would say."""
        self.deadlines.validate()
        self.queue.validate()
        if not self._all:
            kept: tuple[Sized, ...] = (
                self.running, self.acquiring, self.queue.waiting, self._of_route, self.touched
            )  # fmt: skip
            assert not any(map(len, kept)), "what is gone is in an index"
            return
        seqs = set(self._all.values())
        assert set(self.running) == {seq for seq in seqs if seq.state is SeqState.RUNNING}
        assert set(self.acquiring) == {seq for seq in seqs if seq.state is SeqState.ACQUIRING}
        assert {seq for seq in seqs if seq.placement.num_local_slots or seq.placement.debts} <= set(self.holding())
        assert set(self.queue.waiting) == {seq for seq in seqs if seq.state is SeqState.WAITING}
        assert {seq for held in self._of_route.values() for seq in held.values()} == seqs
        assert all(self._of_route.values()), "a route without requests is kept"
        assert set(self.touched.values()) <= seqs
        assert all((seq.request.deadline is None) != (seq.request_id in self.deadlines) for seq in seqs)
