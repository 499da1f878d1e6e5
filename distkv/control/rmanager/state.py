"""What the parts of one rManager's decisions share: settings, memory, requests, and the list of commands.

Each field has one part that changes it: the pool and what is deferred change here, which `sequences` there are in
RequestLifecycle and their states in Admission, `members` and `suspects` in PeerBook, `instance_state` in Drain,
`is_short` in Reclaimer; everybody else asks. `counters` grow where something is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from distkv.config import ControlSettings
from distkv.control.blocks import BlockPool, SlotState
from distkv.control.commands import Command, Publish
from distkv.control.loan.borrowing import Borrower
from distkv.control.loan.lending import LoanBook
from distkv.control.loan.paths import PathBook
from distkv.control.request.block import Debt
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.member_table import MemberTable, Suspects
from distkv.control.schedule.age_order import AgeOrder
from distkv.control.schedule.growth import OutputLengths, blocks_to_come
from distkv.control.schedule.passing import Earmarks
from distkv.control.schedule.scheduler import Scheduler
from distkv.control.schedule.sequences import Sequences
from distkv.events import ClusterEvent
from distkv.types import ServingState
from distkv.wire.messages.counters import Counters


class RManagerSettings(ControlSettings, frozen=True, kw_only=True):
    """What an rManager decides by: what its user set, and what was found out; no "auto" left."""

    instance_id: str
    incarnation: int
    block_tokens: int
    num_blocks: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    serves: str = ""

    @property
    def lendable_blocks(self) -> int:
        """Most this instance ever lends."""
        cap = max(0, self.num_blocks - self.staging_blocks)
        return cap if self.lending_cap_blocks is None else min(cap, self.lending_cap_blocks)


@dataclass(slots=True)
class Deferred:
    """Memory that steps in flight may still name: given up once step `step_id` is answered."""

    step_id: int
    seq: Sequence | None
    slots: list[int]
    then: Callable[[], None] | None = None


@dataclass(slots=True)
class RManagerState:
    """Shared state of one rManager.

    counters: what control counts; the worker counts what concerns tensors. is_short: an own request waits for memory
    that is lent.
    """

    settings: RManagerSettings
    pool: BlockPool = field(init=False)
    loans: LoanBook = field(init=False)
    scheduler: Scheduler = field(init=False)
    paths: PathBook = field(init=False)
    borrower: Borrower = field(init=False)
    sequences: Sequences = field(init=False)
    members: MemberTable = field(default_factory=MemberTable)
    instance_state: ServingState = "ready"
    is_short: bool = False
    outputs: OutputLengths = field(default_factory=OutputLengths)
    earmarks: Earmarks = field(default_factory=Earmarks)
    counters: Counters = field(default_factory=Counters)
    commands: list[Command] = field(default_factory=list)
    _deferred: deque[Deferred] = field(default_factory=deque)
    _deferred_slots: int = 0
    _deferred_to: dict[Sequence, int] = field(default_factory=dict)
    _last_id: int = 0
    _growth_basis: tuple[int, int, int] = (-1, -1, -1)
    _growing_by: dict[Sequence, int] = field(default_factory=dict)
    _growing: int = 0

    def __post_init__(self) -> None:
        s = self.settings
        self.pool = BlockPool(s.num_blocks)
        self.sequences = Sequences(s.request_timeout_s)
        self.loans = LoanBook(self.pool, s.incarnation, s.lease_s)
        self.scheduler = Scheduler(
            s.block_tokens, s.max_num_seqs, s.max_num_batched_tokens, s.mixed_step_ratio, self.take_slot
        )
        entropy = Random(f"{s.instance_id} {s.incarnation}")
        self.paths = PathBook(entropy)
        self.borrower = Borrower(
            s.instance_id,
            s.incarnation,
            s.lease_s,
            s.lease_margin_s,
            self.emit,
            self.members,
            self.paths,
            self.counters,
            entropy,
        )

    def next_id(self) -> int:
        """A number for a checksum, a pull or a renewal; never used twice."""
        self._last_id += 1
        return self._last_id

    def emit(self, command: Command) -> None:
        """Have the actor carry this out, in order."""
        self.commands.append(command)

    def publish(self, event: ClusterEvent) -> None:
        """Have the actor make known what happened."""
        self.commands.append(Publish(event))

    @property
    def suspects(self) -> Suspects:
        """Peers not to borrow from until they are heard again, and when they count as lost; GONE once they do."""
        return self.members.suspects

    def running(self) -> AgeOrder:
        """The batch, oldest first."""
        return self.sequences.running

    def take_slot(self) -> int | None:
        """One free slot for a growing sequence."""
        slots = self.pool.allocate(1, SlotState.LOCAL)
        return slots[0] if slots else None

    def lendable(self) -> int:
        """Blocks that may be lent now: all but staging and what the running sequences are expected to grow into; none
        while an own request waits for what is lent."""
        if self.is_short:
            return 0
        keep = self.settings.staging_blocks + self.growing_blocks()
        return max(0, min(self.pool.num_free - keep, self.settings.lendable_blocks - self.loans.num_blocks))

    def growth(self, seq: Sequence) -> int:
        """rBlocks that a sequence is expected to need besides those of its tokens now."""
        to_come = self.outputs.still_to_come(seq.num_generated, seq.request.params.max_tokens)
        return blocks_to_come(seq.length, seq.num_blocks, to_come, self.settings.block_tokens)

    def growing_blocks(self) -> int:
        """Slots that the running sequences are expected to need yet, besides what they keep at creditors, one at least
        for each; looked at when a step was planned or answered, and for one that joins the batch when it does."""
        basis = self.scheduler.last_step_id, self.scheduler.last_done_id, self.outputs.changes
        changed = self.sequences.take_batch_changes()
        if self._growth_basis != basis:
            self._growth_basis, changed = basis, []
            self._growing_by = {seq: self._slots_to_come(seq) for seq in self.running()}
            self._growing = sum(self._growing_by.values())
        for seq in changed:
            self._growing -= self._growing_by.pop(seq, 0)
            if seq in self.running():
                self._growing_by[seq] = self._slots_to_come(seq)
                self._growing += self._growing_by[seq]
        return self._growing

    def _slots_to_come(self, seq: Sequence) -> int:
        return max(1, self.growth(seq) - seq.placement.num_spare)

    @property
    def has_creditors(self) -> bool:
        """Whether any peer may be asked for memory that no path in doubt keeps from it."""
        if self.members.num_creditors > self.paths.num_failed:
            return True
        doubted = self.paths.doubted_creditors(self.settings.instance_id)
        return self.members.num_creditors > sum(map(self.members.may_lend, doubted))

    def cluster_blocks(self) -> int:
        """Blocks one request could have if nothing else ran: all of ours, all that live peers may lend."""
        return self.settings.num_blocks + self.members.lendable_blocks

    def defer(self, seq: Sequence | None, slots: Iterable[int], then: Callable[[], None] | None = None) -> None:
        """Give slots back to their sequence, or to the pool if it has ended, when no step in flight names them."""
        item = Deferred(self.scheduler.last_step_id, seq, list(slots), then)
        self._deferred.append(item)
        self._deferred_slots += len(item.slots)
        if seq is not None and item.slots:
            self._deferred_to[seq] = self._deferred_to.get(seq, 0) + len(item.slots)
        self.settle()

    def settle(self) -> None:
        """Carry out what waited for steps that are answered by now."""
        while self._deferred and self._deferred[0].step_id <= self.scheduler.last_done_id:
            item = self._deferred.popleft()
            seq = item.seq
            self._undefer(item)
            if seq is not None and self.sequences.get(seq.request_id) is seq:
                seq.placement.add_slots(item.slots)
                self.trim(seq)
            else:
                self.pool.free(item.slots, SlotState.LOCAL)
            if item.then is not None:
                item.then()

    @property
    def has_deferred(self) -> bool:
        """Whether anything waits for steps in flight."""
        return bool(self._deferred)

    @property
    def has_deferred_slots(self) -> bool:
        """Whether slots will come free when steps in flight are answered."""
        return self._deferred_slots > 0

    def returning(self, seq: Sequence) -> int:
        """Slots a sequence will have back when what is leaving has left."""
        return seq.placement.counts.outgoing + self._deferred_to.get(seq, 0)

    def trim(self, seq: Sequence) -> None:
        """Give the pool back the unassigned slots that a sequence has no use for, or none before it is admitted."""
        is_idle = seq.state is SeqState.WAITING and not seq.placement.holds_kv
        if slots := seq.placement.take_unassigned() if is_idle else seq.placement.take_surplus():
            self.pool.free(slots, SlotState.LOCAL)

    def all_debts(self) -> list[Debt]:
        """Every span this instance owes, grants still being collected included."""
        held = [debt for seq in self.sequences.holding() for debt in seq.placement.debts]
        return held + self.borrower.grants()

    def _undefer(self, item: Deferred) -> None:
        self._deferred_slots -= len(item.slots)
        if item.seq is not None and item.slots:
            self._deferred_to[item.seq] -= len(item.slots)
            if not self._deferred_to[item.seq]:
                del self._deferred_to[item.seq]

    def validate(self, closing_slots: Iterable[int] = ()) -> None:
        """No slot has two owners, none has none."""
        self.pool.validate()
        self.loans.validate()
        self.members.validate()
        self.paths.validate()
        self.borrower.validate()
        self.sequences.validate()
        owned = list(closing_slots)
        for seq in self.sequences.values():
            seq.validate()
            owned.extend(seq.placement.local_slots())
        owned.extend(slot for item in self._deferred for slot in item.slots)
        ids = [item.step_id for item in self._deferred]
        assert ids == sorted(ids) and all(step_id <= self.scheduler.last_step_id for step_id in ids), (
            f"deferred to steps {ids}"
        )
        assert len(owned) == len(set(owned)), "a slot has two owners"
        assert len(owned) == self.pool.count(SlotState.LOCAL), (
            f"{self.pool.count(SlotState.LOCAL)} local slots, {len(owned)} owned"
        )
