"""The block tables of requests, kept from step to step: most steps begin no rBlock, and then nothing has to be made."""

from __future__ import annotations

from collections.abc import Iterable

from distkv.engine.device.pool import KvPool
from distkv.errors import MalformedMessage
from distkv.kernels import BlockTable
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import SeqStep


class BlockTables:
    """Of the requests over one pool, by what their newest step says. Used by one thread."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._kept: dict[str, tuple[tuple[Run, ...], BlockTable]] = {}

    def of(self, step: SeqStep) -> BlockTable:
        """The own rBlocks of a sequence with positions below `end`. Raises MalformedMessage if they leave the pool."""
        tokens = self._pool.block_tokens
        local, kept = self._kept.get(step.request_id, ((), None))
        if kept is not None and local == step.local and -(-kept.num_keys // tokens) == -(-step.end // tokens):
            return kept if kept.num_keys == step.end else kept.with_keys(step.end)
        runs = [(run.first_block, run.first_slot, run.num_blocks) for run in step.local]
        if any(first_slot + num_blocks > self._pool.num_slots for _, first_slot, num_blocks in runs):
            raise MalformedMessage(f"{step.request_id}: {step.local} leaves a pool of {self._pool.num_slots} slots")
        table = BlockTable.from_runs(runs, step.end, tokens)
        self._kept[step.request_id] = step.local, table
        return table

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is kept of these requests."""
        for request_id in request_ids:
            self._kept.pop(request_id, None)
