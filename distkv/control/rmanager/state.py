"""What the parts of one rManager's decisions share: settings, memory, requests, and the list of commands.

Each field has one part that changes it: the pool changes here, which `sequences` there are in RequestLifecycle and
their states in Admission, `members` and `suspects` in PeerBook, `instance_state` and `leaves_at` in Drain, `is_short`,
`lacks_more` and `demanded_at` in Reclaimer, `num_debts` and `owed` in DebtBook, `pinned_debtor` in Swapper; everybody
else asks. `counters` grow where something is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field
from random import Random

from distkv.config import ControlSettings
from distkv.control.blocks import BlockPool, SlotState
from distkv.control.commands import Command, Publish
from distkv.control.loan.creditor.lending import LoanBook
from distkv.control.loan.debtor.borrowing import Borrower
from distkv.control.loan.debtor.paths import PathBook
from distkv.control.performance.model import PerformanceModel
from distkv.control.request.block import Debt
from distkv.control.request.history import Histories
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.deferred import Deferred
from distkv.control.rmanager.peers.member_table import MemberTable, Suspects
from distkv.control.schedule.admission.age_order import AgeOrder
from distkv.control.schedule.admission.passing import Earmarks
from distkv.control.schedule.admission.small_ones import SmallOnes
from distkv.control.schedule.admission.worth import Worth
from distkv.control.schedule.growth import Growing
from distkv.control.schedule.scheduler import Scheduler
from distkv.control.schedule.sequences import Sequences
from distkv.control.serving.limit import ServingLimit
from distkv.events import ClusterEvent
from distkv.types import PLANNED_POLICIES, ServingState
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.profile import Profile

LAST_S = 5.0
"""Of a drain: nothing more is lent, and what debtors have not moved elsewhere by the end is computed again."""


class RManagerSettings(ControlSettings, frozen=True, kw_only=True):
    """What an rManager decides by: what its user set, and what was found out; no "auto" left."""

    instance_id: str
    incarnation: int
    block_tokens: int
    num_blocks: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    serves: str = ""
    computes: str = ""
    profile: Profile | None = None

    @property
    def lendable_blocks(self) -> int:
        """Most this instance ever lends."""
        cap = max(0, self.num_blocks - self.staging_blocks)
        return cap if self.lending_cap_blocks is None else min(cap, self.lending_cap_blocks)


MakePool = Callable[[int], BlockPool]
"""The allocator over so many slots."""


@dataclass(slots=True)
class RManagerState:
    """Shared state of one rManager.

    performance: predictions by the profile of this instance; None without one. counters: what control counts; the
    worker counts what concerns tensors. is_short: an own request waits for memory that is lent; lacks_more: it lacks
    more than is lent. policy: as a gManager said last, see `Members.policy`. num_debts: spans that are owed, grants
    still being collected included. owed: creditors of these. pinned_debtor: what is lent to it is not reclaimed now;
    empty is nobody. leaves_at: when this instance exits at the latest, once it drains. demanded_at: when lent memory
    was demanded back last.
    """

    settings: RManagerSettings
    make_pool: InitVar[MakePool] = BlockPool
    pool: BlockPool = field(init=False)
    loans: LoanBook = field(init=False)
    scheduler: Scheduler = field(init=False)
    paths: PathBook = field(init=False)
    borrower: Borrower = field(init=False)
    sequences: Sequences = field(init=False)
    deferred: Deferred = field(init=False)
    growing: Growing = field(init=False)
    small_ones: SmallOnes = field(init=False)
    performance: PerformanceModel | None = field(init=False)
    serving: ServingLimit = field(init=False)
    members: MemberTable = field(default_factory=MemberTable)
    owed: set[str] = field(default_factory=set)
    instance_state: ServingState = "ready"
    is_short: bool = False
    lacks_more: bool = False
    pinned_debtor: str = ""
    leaves_at: float = math.inf
    demanded_at: float = -math.inf
    policy: str = "contract"
    num_debts: int = 0
    histories: Histories = field(default_factory=Histories)
    worth: Worth = field(default_factory=Worth)
    earmarks: Earmarks = field(default_factory=Earmarks)
    counters: Counters = field(default_factory=Counters)
    commands: list[Command] = field(default_factory=list)
    _last_id: int = 0
    _is_network_quick: bool = field(init=False)

    def __post_init__(self, make_pool: MakePool) -> None:
        s = self.settings
        self.performance = None if s.profile is None else PerformanceModel(s.profile)
        self._is_network_quick = self.performance is None or self.performance.carries_prompts("network")
        self.pool = make_pool(s.num_blocks)
        self.sequences = Sequences(s.request_timeout_s)
        self.serving = ServingLimit(s.max_serve_fraction, s.max_tpot_s, s.reclaim_after_s)
        self.loans = LoanBook(self.pool, s.incarnation, s.lease_s)
        self.scheduler = Scheduler(
            s.block_tokens,
            s.max_num_seqs,
            s.max_num_batched_tokens,
            s.mixed_step_ratio,
            self.take_slot,
            self.take_spare,
        )
        self.deferred = Deferred(self.pool, self.sequences, self.scheduler)
        self.growing = Growing(self.sequences, self.scheduler)
        self.small_ones = SmallOnes(self.sequences, s.num_blocks)
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
            self.owed,
        )

    @property
    def shares_memory(self) -> bool:
        """Whether the instances lend to each other at all."""
        return self.policy != "none"

    @property
    def is_planned(self) -> bool:
        """Whether a gManager plans where blocks should lie, for which heartbeats tell more of the requests."""
        return self.policy in PLANNED_POLICIES

    @property
    def is_one_sided(self) -> bool:
        """Whether who owes lends nothing, and who lends borrows nothing (001 §5.2)."""
        return self.policy == "greedy"

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

    def take_spare(self, count: int) -> list[int]:
        """Up to so many free slots that neither those that run are expected to grow into nor anybody waits for."""
        if self.sequences.is_memory_awaited:
            return []
        spare = self.pool.num_free - self.settings.staging_blocks - self.growing.blocks() - self.growing.due()
        return self.pool.allocate(max(0, min(count, spare)), SlotState.LOCAL) or []

    def lendable(self) -> int:
        """Blocks that may be lent now: all but staging and what the running sequences are expected to grow into; none
        while an own request waits for what is lent, where nobody shares memory, serving takes as much as it may, or by
        one that owes, where that one lends nothing."""
        if self.is_short or self.serving.is_limited or not self.shares_memory:
            return 0
        if self.is_one_sided and self._is_debtor:
            return 0
        return self._lendable_beside(self.growing.blocks())

    def lendable_to(self, debtor_id: str, request_id: str) -> int:
        """The same for one request. One that has borrowed here may grow where the own request that waits lacks more
        than is lent: that would not begin if this one stopped, and all that this one has computed would be lost."""
        may_grow = self.is_short and self.lacks_more and self.loans.has_lent_for(debtor_id, request_id)
        is_debtor = self.is_one_sided and self._is_debtor
        if not may_grow or self.serving.is_limited or is_debtor:
            return self.lendable()
        return self._lendable_beside(self.growing.blocks())

    def lastingly_lendable(self) -> int:
        """Of these, what the next step leaves: a slot that it takes is not in `growing.blocks()` any more. While all
        that runs decodes, and nothing else happens, this does not grow."""
        if not self.lendable():
            return 0
        return self._lendable_beside(self.growing.blocks() + self.growing.due())

    def _lendable_beside(self, growing: int) -> int:
        most = self.settings.lendable_blocks - self.loans.num_blocks
        return max(0, min(self.pool.num_free - self.settings.staging_blocks - growing, most))

    def movable_tokens(self, seq: Sequence) -> int:
        """Tokens that a sequence is expected to need memory for in all, if it may begin elsewhere; else 0."""
        has_begun = seq.state is SeqState.RUNNING or seq.request.began is not None
        if has_begun or not seq.request.can_move:
            return 0
        return (seq.size_blocks + self.growing.growth(seq)) * self.settings.block_tokens

    @property
    def waits_for_partials(self) -> bool:
        """Whether steps of the running sequences wait for partials."""
        return bool(self.owed) and any(seq.placement.debts for seq in self.running())

    def fits_at_home(self, seq: Sequence) -> bool:
        """Whether this pool alone could hold it, with what it is expected to grow by."""
        return seq.num_blocks + self.growing.growth(seq) <= self.settings.num_blocks

    def stays_near(self, seq: Sequence) -> bool:
        """Whether a sequence is to borrow on this host only: the network would keep its prompt, and those that decode
        beside it, waiting for longer than computing takes, and this host can hold it. Who cannot be held at home grows
        anywhere once its prompt is computed: it sends one query a step, and would lose all if it stopped."""
        if self._is_network_quick:
            return False
        if self.fits_at_home(seq):
            return True
        num_blocks = seq.num_blocks + self.growing.growth(seq)
        return not seq.is_decoding and num_blocks <= self.settings.num_blocks + self.members.near_blocks

    def may_borrow_for(self, seq: Sequence) -> bool:
        """Whether anybody may be asked for memory for it, as far as where they are matters."""
        return self.members.near_blocks > 0 or not self.stays_near(seq)

    def may_be_lent_to(self, seq: Sequence) -> bool:
        """Whether anybody may lend to this one. Who drains lends to those that have memory there and no other place."""
        return self.has_creditors or (
            any(self.members.is_draining(debt.creditor_id) for debt in seq.placement.debts)
            and not self.fits_at_home(seq)
        )

    @property
    def has_creditors(self) -> bool:
        """Whether some peer may be asked for memory over a path that is not in doubt. False while this instance lends
        under a policy by which who lends does not borrow."""
        if self.is_one_sided and self.loans.num_blocks:
            return False
        if self.members.num_creditors > self.paths.num_failed:
            return True
        doubted = self.paths.doubted_creditors(self.settings.instance_id)
        return self.members.num_creditors > sum(map(self.members.may_lend, doubted))

    @property
    def _is_debtor(self) -> bool:
        """Whether this instance owes something, or looks for somebody to borrow from."""
        return self.num_debts > 0 or bool(self.borrower.active)

    def kept_for_next(self, now: float) -> int:
        """Slots that one which could wait for memory at home leaves free there, and at its creditors: whoever comes
        next and is small begins at once; where who has lent may not borrow, also for who runs to grow."""
        return self.small_ones.most if self.is_one_sided else self.small_ones.blocks(now)

    @property
    def is_batch_full(self) -> bool:
        """Whether as many sequences run as one step may have."""
        return len(self.running()) >= self.settings.max_num_seqs

    def cluster_blocks(self) -> int:
        """Blocks one request could have if nothing else ran: all of ours, all that live peers may lend."""
        return self.settings.num_blocks + self.members.lendable_blocks

    def all_debts(self) -> list[Debt]:
        """Every span this instance owes, grants still being collected included."""
        held = [debt for seq in self.sequences.holding() for debt in seq.placement.debts]
        return held + self.borrower.grants()

    def validate(self, closing_slots: Iterable[int] = ()) -> None:
        """No slot has two owners, none has none."""
        self.pool.validate()
        self.loans.validate()
        self.members.validate()
        self.paths.validate()
        self.borrower.validate()
        self.sequences.validate()
        self.histories.validate(self.sequences)
        self.deferred.validate()
        owned = list(closing_slots)
        for seq in self.sequences.values():
            seq.validate()
            owned.extend(seq.placement.local_slots())
        owned.extend(self.deferred)
        assert len(owned) == len(set(owned)), "a slot has two owners"
        assert len(owned) == self.pool.count(SlotState.LOCAL), (
            f"{self.pool.count(SlotState.LOCAL)} local slots, {len(owned)} owned"
        )
