"""Parts of one rManager, made alone, without the others."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from types import FrameType
from typing import Any, TypeVar

from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.paths import Path
from distkv.control.request.answer.output import NoText, OutputText
from distkv.control.request.block import Debt
from distkv.control.request.ranges import Ranges
from distkv.control.request.request import Request
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerSettings, RManagerState
from distkv.types import SamplingParams
from distkv.wire.messages.common import DataEndpoint, Epoch, Member, SpanRef
from distkv.wire.messages.to_rmanager import BlocksReady, ReadyBlock

BLOCK = 4
M = TypeVar("M")


def make_member(name: str, incarnation: int = 1, free_blocks: int = 8, **fields: Any) -> Member:
    return Member(
        instance_id=name,
        incarnation=incarnation,
        address=f"sim://{name}",
        block_tokens=BLOCK,
        total_blocks=fields.pop("total_blocks", free_blocks),
        lendable_blocks=fields.pop("lendable_blocks", free_blocks),
        free_blocks=free_blocks,
        **{"state": "ready", "data": DataEndpoint(address=f"sim://{name}:1", host_key="host")} | fields,
    )


def make_state(num_blocks: int = 16, peers: Seq[str] = ("p", "q"), **settings: Any) -> RManagerState:
    """An instance "me" that knows these peers, with links to all of them."""
    state = RManagerState(
        RManagerSettings(
            instance_id="me", incarnation=7, block_tokens=BLOCK, num_blocks=num_blocks, vocab_size=1000, **settings
        )
    )
    state.members.update({name: make_member(name) for name in peers})
    for name in peers:
        state.paths.linked(Path("me", name))
    return state


def add_sequence(
    state: RManagerState,
    request_id: str = "r",
    num_tokens: int = 8,
    seq_state: SeqState = SeqState.RUNNING,
    **fields: Any,
) -> Sequence:
    """A request of `num_tokens` prompt tokens that has no memory yet."""
    params = fields.pop("params", SamplingParams(max_tokens=fields.pop("max_tokens", 8), temperature=0.0))
    request = Request(
        request_id=request_id,
        route=b"client:" + request_id.encode(),
        params=params,
        seed=1,
        tokens=array("i", range(num_tokens)),
        prompt_tokens=num_tokens,
        **{"arrival": 0.0} | fields,
    )
    seq = Sequence(request, OutputText(NoText(), params, frozenset()), state.settings.block_tokens)
    seq.placement.cover(num_tokens)
    state.sequences[request_id] = seq
    if seq_state is SeqState.RUNNING:
        state.sequences.run(seq)
    elif seq_state is SeqState.ACQUIRING:
        state.sequences.acquire(seq)
    return seq


def compute(state: RManagerState, seq: Sequence, moving: bool = False) -> None:
    """Give every block that lies nowhere a slot and let all of its prompt be computed and full. moving: also those that
    have a place to go to."""
    placement = seq.placement
    for block in placement.blocks:
        if block.slot is None and not block.arrived and (moving or block.debt is None):
            slot = state.take_slot()
            assert slot is not None
            placement.put(block, slot)
    seq.uncomputed = Ranges()
    placement.mark_full(placement.blocks[: seq.length // placement.block_tokens])


def lend(
    seq: Sequence,
    creditor: str,
    num_blocks: int,
    valid_until: float = 10.0,
    at: int = 0,
    debts: DebtBook | None = None,
    spare: int = 0,
) -> Debt:
    """A debt of the sequence with its blocks [at, at + num_blocks) on their way to it, and positions to spare; its
    renewal is due."""
    count = len(seq.placement.debts)
    span = SpanRef(span_id=f"{seq.request_id}-{creditor}-{count}", epoch=Epoch(1, count + 1))
    debt = Debt(span, creditor, tuple(range(100, 100 + num_blocks + spare)), valid_until, 4.0)
    if debts is not None:
        debts.add(seq, debt, 0.0)
    seq.placement.borrow(debt, seq.placement.blocks[at : at + num_blocks])
    return debt


def offer(seq: Sequence, debt: Debt, num_blocks: int | None = None) -> None:
    """The creditor was told that the next blocks of the debt lie ready, all of them or so many."""
    blocks = debt.blocks[debt.filled :][:num_blocks]
    seq.placement.mark_full(blocks)
    for block in blocks:
        block.checksum = 1000 + block.number
    ready = tuple(ReadyBlock(block.slot or 0, 1000 + block.number) for block in blocks)
    message = BlocksReady(span=debt.span, index=debt.filled, source_id="me", source_incarnation=7, blocks=ready)
    seq.placement.offered(debt, message, 0.0)


def place(state: RManagerState, seq: Sequence, debt: Debt) -> None:
    """All blocks of the debt lie at the creditor."""
    offer(seq, debt)
    slots, _ = seq.taken(debt)
    state.deferred.add(seq, slots)


def issued(state: RManagerState, kind: type[M]) -> list[M]:
    """Bodies of this type among the commands since the last call, which takes them all."""
    bodies = [getattr(command, "body", command) for command in state.commands]
    state.commands.clear()
    return [body for body in bodies if isinstance(body, kind)]


def validate(state: RManagerState, debts: DebtBook | None = None) -> None:
    state.validate(debts.closing_slots() if debts else ())
    if debts is not None:
        debts.validate()


def calls(act: Callable[[], object]) -> int:
    """How many functions are called, those of C included, and none that a collection of garbage would call."""
    count = 0

    def on_event(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    was_enabled = gc.isenabled()
    gc.disable()
    sys.setprofile(on_event)
    try:
        act()
    finally:
        sys.setprofile(None)
        if was_enabled:
            gc.enable()
    return count
