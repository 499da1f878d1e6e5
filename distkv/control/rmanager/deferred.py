"""Memory that steps in flight may still name: it is given back when they are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from distkv.control.blocks import BlockPool, SlotState
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.schedule.scheduler import Scheduler
from distkv.control.schedule.sequences import Sequences


@dataclass(slots=True)
class Item:
    """Given up once step `step_id` is answered."""

    step_id: int
    seq: Sequence | None
    slots: list[int]
    then: Callable[[], None] | None = None


class Deferred:
    """What waits for steps in flight, of one instance; false if nothing does."""

    def __init__(self, pool: BlockPool, sequences: Sequences, scheduler: Scheduler) -> None:
        self._pool, self._sequences, self._scheduler = pool, sequences, scheduler
        self._items: deque[Item] = deque()
        self._num_slots = 0
        self._slots_of: dict[Sequence, int] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[int]:
        """The slots."""
        return (slot for item in self._items for slot in item.slots)

    @property
    def has_slots(self) -> bool:
        """Whether slots will come free when steps in flight are answered."""
        return self._num_slots > 0

    def add(self, seq: Sequence | None, slots: Iterable[int], then: Callable[[], None] | None = None) -> None:
        """Give slots back to their sequence, or to the pool if it has ended, when no step in flight names them."""
        item = Item(self._scheduler.last_step_id, seq, list(slots), then)
        self._items.append(item)
        self._num_slots += len(item.slots)
        if seq is not None and item.slots:
            self._slots_of[seq] = self._slots_of.get(seq, 0) + len(item.slots)
        self.settle()

    def settle(self) -> None:
        """Carry out what waited for steps that are answered by now."""
        while self._items and self._items[0].step_id <= self._scheduler.last_done_id:
            item = self._items.popleft()
            seq = item.seq
            self._count_out(item)
            if seq is not None and self._sequences.get(seq.request_id) is seq:
                seq.placement.add_slots(item.slots)
                self.trim(seq)
            else:
                self._pool.free(item.slots, SlotState.LOCAL)
            if item.then is not None:
                item.then()

    def returning(self, seq: Sequence) -> int:
        """Slots a sequence will have back when what is leaving has left."""
        return seq.placement.counts.outgoing + self._slots_of.get(seq, 0)

    def trim(self, seq: Sequence) -> None:
        """Give the pool back the unassigned slots that a sequence has no use for, or none before it is admitted."""
        is_idle = seq.state is SeqState.WAITING and not seq.placement.holds_kv
        if slots := seq.placement.take_unassigned() if is_idle else seq.placement.take_surplus():
            self._pool.free(slots, SlotState.LOCAL)

    def validate(self) -> None:
        """Nothing waits for a step that is not planned, or for longer than what came later."""
        ids = [item.step_id for item in self._items]
        assert ids == sorted(ids) and all(step_id <= self._scheduler.last_step_id for step_id in ids), (
            f"deferred to steps {ids}"
        )

    def _count_out(self, item: Item) -> None:
        self._num_slots -= len(item.slots)
        if item.seq is not None and item.slots:
            self._slots_of[item.seq] -= len(item.slots)
            if not self._slots_of[item.seq]:
                del self._slots_of[item.seq]
