"""How rBlocks leave for creditors (docs/loans.md).

A move is checksum → `BlocksReady` → the destination pulls and verifies → `Complete` → the next step uses the new
place → the old place is free when no step names it any more.
"""

from __future__ import annotations

from distkv import events
from distkv.checksums import unpack
from distkv.control.commands import TellPeer, TellWorker
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.paths import LONGEST_UNUSED_S, Path
from distkv.control.request.block import Block, Debt
from distkv.control.request.placement import Placement
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.timers import Timers
from distkv.wire.messages.from_worker import Checksummed
from distkv.wire.messages.to_rmanager import MAX_READY_BLOCKS, BlocksReady, Complete, ReadyBlock
from distkv.wire.messages.to_worker import Checksum

MAX_CHECKSUMMED_AHEAD = 2 * MAX_READY_BLOCKS
FIRST_AGAIN_S = 0.25
LONGEST_AGAIN_S = 2.0
"""A `BlocksReady` or its answer may be lost with a connection; a creditor that is still reading ignores the second. The
pauses between them double from the first to the longest."""
UNANSWERED_S = 15.0
"""A creditor that took nothing and did not say why: longer than its worker waits for a source."""
MAX_FAILURES = 3


class Mover:
    """Moves of one instance's sequences."""

    def __init__(self, state: RManagerState, debts: DebtBook) -> None:
        self._state = state
        self._debts = debts
        self._again: Timers[str] = Timers()
        self._checksums: dict[int, tuple[Sequence, list[tuple[Block, int]]]] = {}

    def advance(self, seq: Sequence, now: float) -> None:
        """Checksum what is full, and say what lies ready."""
        if pairs := seq.placement.to_checksum(MAX_CHECKSUMMED_AHEAD):
            checksum_id = self._state.next_id()
            self._checksums[checksum_id] = seq, pairs
            slots = tuple(slot for _, slot in pairs)
            self._state.emit(TellWorker(Checksum(checksum_id=checksum_id, slots=slots)))
        for debt in list(seq.placement.debts):
            if not debt.num_ready:
                self._offer(seq, debt, now)
            elif now - debt.offered_at >= UNANSWERED_S:
                problem = f"no answer within {UNANSWERED_S:g} s"
                self._failed(seq, debt, problem)
                self._state.paths.failed(self._path(debt), problem, now, took_s=UNANSWERED_S)
                self._debts.abandon(seq, debt)
                self._again.bring_forward(seq.request_id, now)  # what has no place now waits for one
            elif debt.blocks_ready is not None and now >= _again_at(debt):
                seq.placement.offered(debt, debt.blocks_ready, now)
                self._state.emit(TellPeer(debt.creditor_id, debt.blocks_ready))
            if debt.num_ready:
                self._again.bring_forward(seq.request_id, _again_at(debt))

    def tick(self, now: float) -> None:
        """Look again at sequences whose creditors did not answer, or could not be told."""
        for request_id in self._again.take_due(now):
            if (seq := self._state.sequences.get(request_id)) is not None:
                self._state.sequences.touch(seq)

    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        return self._again.next_at()

    def validate(self) -> None:
        """Nothing that could leave is left lying, unless it is tried again."""
        for seq in self._state.sequences.values():
            for debt in seq.placement.debts:
                is_idle = not debt.num_ready and not self._ready(debt)[0]
                assert is_idle or seq.request_id in self._again, f"{seq.request_id}: {debt.span.span_id} is forgotten"
        self._again.validate()

    def _offer(self, seq: Sequence, debt: Debt, now: float) -> None:
        """Say which of the next blocks of a debt lie ready, or try again where their source is not known now."""
        ready, source = self._ready(debt)
        if source is not None and not self._send_ready(seq, debt, ready, source, now):
            self._again.bring_forward(seq.request_id, now + LONGEST_AGAIN_S)

    def _ready(self, debt: Debt) -> tuple[list[Block], str | None]:
        """Which of the next blocks of a debt lie ready, all at one place, and where."""
        ready: list[Block] = []
        source: str | None = None
        for block in debt.blocks[debt.filled : debt.filled + MAX_READY_BLOCKS]:
            lies_at = self._source(block)
            if lies_at is None or block.checksum is None or source not in (None, lies_at):
                break
            source = lies_at
            ready.append(block)
        return ready, source

    def on_checksummed(self, message: Checksummed) -> None:
        """Checksums are there."""
        if (asked := self._checksums.pop(message.checksum_id, None)) is not None:
            seq, pairs = asked
            Placement.checksummed(pairs, unpack(message.checksums))
            self._state.sequences.touch(seq)

    def on_complete(self, creditor_id: str, message: Complete, now: float) -> None:
        """A creditor has taken blocks over, or could not."""
        found = self._debts.find(message.span)
        if found is None:
            return
        seq, debt = found
        if debt.creditor_id != creditor_id or message.index != debt.filled or not debt.num_ready:
            return
        count = debt.num_ready
        self._state.sequences.touch(seq)
        path = self._path(debt)
        if message.problem or message.num_blocks != count:
            problem = message.problem or f"it took {message.num_blocks} of {count} blocks"
            self._failed(seq, debt, problem)
            if debt.failures >= MAX_FAILURES:
                took_s, held_s = now - debt.offered_at, now - debt.waits_since
                self._state.paths.failed(path, problem, now, took_s, longest_s=LONGEST_UNUSED_S, held_s=held_s)
                self._debts.abandon(seq, debt)
            return
        self._state.paths.worked(path)
        self._state.counters.moved_blocks += count
        self._state.histories.note(seq.request_id, "left", instance_id=creditor_id, blocks=count)
        slots, left = seq.taken(debt)
        for old, positions in left.items():
            self._debts.release_positions(seq, old, positions)
        if slots:
            self._state.deferred.add(seq, slots)

    def _failed(self, seq: Sequence, debt: Debt, problem: str) -> None:
        seq.placement.refused(debt)
        self._state.histories.note(seq.request_id, "not_moved", instance_id=debt.creditor_id, why=problem)
        self._state.publish(events.MoveFailed(request_id=seq.request_id, creditor=debt.creditor_id, problem=problem))

    def _path(self, debt: Debt) -> Path:
        """By which its creditor pulls what lies ready."""
        assert debt.blocks_ready is not None
        return Path(debt.creditor_id, debt.blocks_ready.source_id)

    def _source(self, block: Block) -> str | None:
        if block.slot is not None and block.full:
            return self._state.settings.instance_id
        return block.moving_from.creditor_id if block.moving_from is not None else None

    def _send_ready(self, seq: Sequence, debt: Debt, blocks: list[Block], source: str, now: float) -> bool:
        own = self._state.settings
        member = self._state.members.find(source)
        if source != own.instance_id and member is None:
            return False
        ready = []
        for block in blocks:
            slot = block.slot if block.moving_from is None else block.moving_from.slots[block.moving_from_index]
            assert slot is not None and block.checksum is not None
            ready.append(ReadyBlock(slot, block.checksum))
        message = BlocksReady(
            span=debt.span,
            index=debt.filled,
            source_id=source,
            source_incarnation=own.incarnation if member is None else member.incarnation,
            blocks=tuple(ready),
        )
        seq.placement.offered(debt, message, now)
        self._state.emit(TellPeer(debt.creditor_id, message))
        return True


def _again_at(debt: Debt) -> float:
    """When to say again what lies ready, after as long as that was said before."""
    said_for_s = debt.blocks_ready_sent_at - debt.offered_at
    return debt.blocks_ready_sent_at + min(LONGEST_AGAIN_S, max(FIRST_AGAIN_S, said_for_s))
