"""Parts of one rManager, made alone, without the others."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, TypeVar

from distkv.control.loan.debts import DebtBook
from distkv.control.request.output import NoText, OutputText
from distkv.control.request.placement import Debt
from distkv.control.request.ranges import Ranges
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerSettings, RManagerState
from distkv.types import SamplingParams
from distkv.wire.messages.common import DataEndpoint, Epoch, Member, SpanRef

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
    state = RManagerState(
        RManagerSettings(
            instance_id="me", incarnation=7, block_tokens=BLOCK, num_blocks=num_blocks, vocab_size=1000, **settings
        )
    )
    state.members.update({name: make_member(name) for name in peers})
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
    seq = Sequence(
        request_id=request_id,
        route=b"client:" + request_id.encode(),
        params=params,
        seed=1,
        tokens=list(range(num_tokens)),
        prompt_tokens=num_tokens,
        output=OutputText(NoText(), params, frozenset()),
        block_tokens=state.settings.block_tokens,
        uncomputed=Ranges([(0, num_tokens)]),
        state=seq_state,
        **{"arrival": 0.0} | fields,
    )
    seq.cover(num_tokens)
    state.sequences[request_id] = seq
    return seq


def compute(state: RManagerState, seq: Sequence) -> None:
    """Give every block that lies nowhere a slot and let all of its prompt be computed and full."""
    for block in seq.blocks:
        if block.slot is None and not block.arrived and block.debt is None:
            slot = state.take_slot()
            assert slot is not None
            seq.put(block, slot)
    seq.uncomputed = Ranges()
    for block in seq.blocks[: seq.length // seq.block_tokens]:
        seq.mark_full(block)


def lend(seq: Sequence, creditor: str, num_blocks: int, valid_until: float = 10.0, at: int = 0) -> Debt:
    """A debt of the sequence with its blocks [at, at + num_blocks) on their way to it."""
    span = SpanRef(span_id=f"{seq.request_id}-{creditor}-{len(seq.debts)}", epoch=Epoch(1, len(seq.debts) + 1))
    debt = Debt(span, creditor, tuple(range(100, 100 + num_blocks)), valid_until, 4.0)
    seq.debts.append(debt)
    for block in seq.blocks[at : at + num_blocks]:
        seq.assign(block, debt)
    return debt


def place(state: RManagerState, seq: Sequence, debt: Debt) -> None:
    """All blocks of the debt lie at the creditor."""
    freed = []
    for block in debt.blocks[debt.filled :]:
        block.checksum = 1000 + block.number
        slot, _ = seq.settle_at_creditor(block)
        freed += [] if slot is None else [slot]
    debt.filled, debt.num_ready = len(debt.blocks), 0
    seq.version += 1
    state.defer(seq, freed)


def issued(state: RManagerState, kind: type[M]) -> list[M]:
    """Bodies of this type among the commands since the last call, which takes them all."""
    bodies = [getattr(command, "body", command) for command in state.commands]
    state.commands.clear()
    return [body for body in bodies if isinstance(body, kind)]


def validate(state: RManagerState, debts: DebtBook | None = None) -> None:
    state.validate(debts.closing_slots() if debts else ())
