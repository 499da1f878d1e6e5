"""The first rBlocks of a sequence as runs of neighbours: what a step is given to find its KV by."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from msgspec import structs

from distkv.control.request.block import Block, Debt
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import RemoteSpan


class BlockTable:
    """The first blocks of a sequence as runs of neighbours.

    A step looks only at blocks from the first one on that changed since the step before it.
    """

    __slots__ = ("_local", "_num_blocks", "_remote")

    def __init__(self) -> None:
        self._num_blocks = 0
        self._local: list[Run] = []
        self._remote: list[RemoteSpan] = []

    def of(self, blocks: Seq[Block], num_blocks: int) -> tuple[tuple[Run, ...], tuple[RemoteSpan, ...]]:
        """Where the first `num_blocks` blocks lie here, and in which borrowed spans the others lie; both ascending."""
        self.forget_from(num_blocks)
        while self._num_blocks < num_blocks:
            block = blocks[self._num_blocks]
            if block.slot is not None:
                self._extend_local(blocks, num_blocks, block.slot)
            elif (place := block.location()) is not None:
                self._extend_remote(blocks, num_blocks, *place)
            else:
                self._num_blocks += 1
        return tuple(self._local), tuple(self._remote)

    def forget_from(self, number: int) -> None:
        """Block `number`, and maybe some after it, lie elsewhere now."""
        if number >= self._num_blocks:
            return
        self._num_blocks = number
        while self._local and (last := self._local[-1]).first_block + last.num_blocks > number:
            self._local.pop()
            if last.first_block < number:
                self._local.append(Run(last.first_block, last.first_slot, number - last.first_block))
        while self._remote and (end := self._remote[-1]).first_block + end.num_blocks > number:
            self._remote.pop()
            if end.first_block < number:
                self._remote.append(structs.replace(end, num_blocks=number - end.first_block))

    def is_of(self, blocks: Seq[Block]) -> bool:
        """Whether the runs say where the blocks lie now."""
        return BlockTable().of(blocks, self._num_blocks) == (tuple(self._local), tuple(self._remote))

    def _extend_local(self, blocks: Seq[Block], num_blocks: int, slot: int) -> None:
        first = number = self._num_blocks
        while number < num_blocks and blocks[number].slot == slot + number - first:
            number += 1
        self._num_blocks = number
        last = self._local[-1] if self._local else Run(0, 0, 0)
        if last.first_block + last.num_blocks == first and last.first_slot + last.num_blocks == slot and self._local:
            self._local[-1] = Run(last.first_block, last.first_slot, last.num_blocks + number - first)
        else:
            self._local.append(Run(first, slot, number - first))

    def _extend_remote(self, blocks: Seq[Block], num_blocks: int, debt: Debt, index: int) -> None:
        first = number = self._num_blocks
        while number < num_blocks and blocks[number].location() == (debt, index + number - first):
            number += 1
        self._num_blocks = number
        count = number - first
        if self._remote:
            last = self._remote[-1]
            if (
                last.span == debt.span
                and last.first_block + last.num_blocks == first
                and last.index + last.num_blocks == index
            ):
                first, index, count = last.first_block, last.index, last.num_blocks + count
                self._remote.pop()
        self._remote.append(
            RemoteSpan(instance_id=debt.creditor_id, span=debt.span, index=index, first_block=first, num_blocks=count)
        )
