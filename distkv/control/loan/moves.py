"""How rBlocks leave for creditors (PROTOCOL, "Life of a lent block").

A move is seal → expose → the destination pulls and verifies → `Complete` → the next step uses the new place → the old
place is free when no step names it any more.
"""

from __future__ import annotations

from distkv import events
from distkv.control.commands import TellPeer, TellWorker
from distkv.control.loan.debts import DebtBook
from distkv.control.request.placement import Block, Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import Instance
from distkv.wire.messages.from_worker import Checksummed
from distkv.wire.messages.to_rmanager import BlocksReady, Complete, ReadyBlock
from distkv.wire.messages.to_worker import Checksum

MAX_READY_BLOCKS = 32
MAX_SEALED_AHEAD = 2 * MAX_READY_BLOCKS
ASK_AGAIN_S = 1.5
"""An `BlocksReady` or its answer may be lost with a connection; a creditor that is still reading ignores the second."""
MAX_FAILURES = 3


class Mover:
    """Moves of one instance's sequences."""

    def __init__(self, instance: Instance, debts: DebtBook) -> None:
        self._instance = instance
        self._debts = debts
        self._checksums: dict[int, list[tuple[Block, int]]] = {}

    def advance(self, seq: Sequence, now: float) -> None:
        """Seal and expose what is ready to leave."""
        to_seal = [
            block
            for debt in seq.debts
            for block in debt.blocks[debt.filled : debt.filled + MAX_SEALED_AHEAD]
            if block.slot is not None and block.sealed and block.checksum is None and not block.sealing
        ]
        if to_seal:
            self._seal(to_seal)
        for debt in seq.debts:
            if not debt.exposed:
                self._expose_ready(debt, now)
            elif debt.asked is not None and now - debt.asked_at >= ASK_AGAIN_S:
                debt.asked_at = now
                self._instance.emit(TellPeer(debt.creditor_id, debt.asked))

    def _expose_ready(self, debt: Debt, now: float) -> None:
        """BlocksReady the next blocks of a debt that lie ready at one place."""
        ready: list[Block] = []
        source: str | None = None
        for block in debt.blocks[debt.filled : debt.filled + MAX_READY_BLOCKS]:
            lies_at = self._source(block)
            if lies_at is None or block.checksum is None or source not in (None, lies_at):
                break
            source = lies_at
            ready.append(block)
        if source is not None:
            self._expose(debt, ready, source, now)

    def on_checksummed(self, message: Checksummed) -> None:
        """Checksums are there."""
        asked = self._checksums.pop(message.checksum_id, [])
        for block, _ in asked:
            block.sealing = False
        for (block, slot), checksum in zip(asked, message.checksums, strict=False):
            if block.slot == slot and block.sealed:
                block.checksum = checksum

    def on_complete(self, creditor_id: str, message: Complete) -> None:
        """A creditor has taken blocks over, or could not."""
        found = self._debts.find(message.span)
        if found is None:
            return
        seq, debt = found
        if debt.creditor_id != creditor_id or message.index != debt.filled or not debt.exposed:
            return
        count, debt.exposed = debt.exposed, 0
        if message.problem or message.num_blocks != count:
            self._instance.publish(
                events.MoveFailed(request_id=seq.request_id, creditor=debt.creditor_id, problem=message.problem)
            )
            debt.failures += 1
            if debt.failures >= MAX_FAILURES:
                self._debts.abandon(seq, debt)
            return
        moved = debt.blocks[debt.filled : debt.filled + count]
        debt.filled += count
        debt.failures = 0
        self._instance.counters.moved_blocks += count
        self._take_over(seq, moved)

    def _source(self, block: Block) -> str | None:
        if block.slot is not None and block.sealed:
            return self._instance.settings.instance_id
        return block.home.creditor_id if block.home is not None else None

    def _seal(self, blocks: list[Block]) -> None:
        checksum_id = self._instance.next_id()
        pairs = [(block, block.slot) for block in blocks if block.slot is not None]
        for block, _ in pairs:
            block.sealing = True
        self._checksums[checksum_id] = pairs
        self._instance.emit(TellWorker(Checksum(checksum_id=checksum_id, slots=tuple(slot for _, slot in pairs))))

    def _expose(self, debt: Debt, blocks: list[Block], source: str, now: float) -> None:
        own = self._instance.settings
        member = self._instance.members.get(source)
        if source != own.instance_id and member is None:
            return
        exposed = []
        for block in blocks:
            slot = block.slot if block.home is None else block.home.slots[block.home_index]
            assert slot is not None and block.checksum is not None
            exposed.append(ReadyBlock(slot, block.checksum))
        expose = BlocksReady(
            span=debt.span,
            index=debt.filled,
            source_id=source,
            source_incarnation=own.incarnation if member is None else member.incarnation,
            blocks=tuple(exposed),
        )
        debt.exposed, debt.asked, debt.asked_at = len(exposed), expose, now
        self._instance.emit(TellPeer(debt.creditor_id, expose))

    def _take_over(self, seq: Sequence, moved: list[Block]) -> None:
        """The moved blocks lie at their creditor now; what they leave is free when no step names it."""
        freed, homes = [], []
        for block in moved:
            slot, home = seq.settle_at_creditor(block)
            if slot is not None:
                freed.append(slot)
            if home is not None:
                homes.append(home)
            seq.todo.remove(*seq.span_of(block))
        seq.version += 1
        for home in homes:
            self._debts.release_if_empty(seq, home)
        if freed:
            self._instance.defer(seq, freed)
