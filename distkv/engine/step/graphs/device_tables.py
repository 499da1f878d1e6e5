"""Block tables on the device, where captured graphs read them: kept from step to step, changed where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distkv.engine.device.device import Device
from distkv.engine.device.pool import KvPool
from distkv.wire.messages.common import Run


@dataclass(slots=True)
class _Kept:
    """place: of the table. local: what it holds. used: number of the step that needed it last."""

    place: int
    local: tuple[Run, ...]
    used: int


@dataclass(frozen=True, slots=True)
class TakenTables:
    """Of the sequences of a step, in their order: int64 [N] each.

    tables: which table is that of each. first_blocks: the first of its blocks; counts: how many of them there are, as
    of the newest step.
    """

    tables: NDArray[np.int64]
    first_blocks: NDArray[np.int64]
    counts: NDArray[np.int64]

    def repeated(self, times: Sequence[int]) -> TakenTables:
        """The table of each sequence so many times, one after another."""
        return TakenTables(*(np.repeat(one, times) for one in (self.tables, self.first_blocks, self.counts)))


class DeviceTables:
    """Tables of `num_tables` requests at a time, of up to max_blocks blocks each. Used by one thread.

    tensor: int32 [num_tables · max_blocks + 1], on the device: table i from i · max_blocks on, slots of blocks that
    follow each other; the last number is nobody's. It lags behind until `take_changes` was written to it.
    """

    def __init__(self, pool: KvPool, place: torch.device, num_tables: int, max_blocks: int) -> None:
        self._num_slots, self._max_blocks = pool.num_slots, max_blocks
        self.tensor = torch.zeros(num_tables * max_blocks + 1, dtype=torch.int32, device=place)
        self._slots = np.zeros((num_tables, max_blocks), np.int64)
        self._first_blocks = np.zeros(num_tables, np.int64)
        self._counts = np.zeros(num_tables, np.int64)
        self._kept: dict[str, _Kept] = {}
        self._free = list(range(num_tables))
        self._step = 0
        self._changes: dict[int, tuple[int, int]] = {}
        # Of the newest step: a step of the same sequences looks only at those whose blocks have changed.
        self._names: list[str] = []
        self._locals: list[tuple[Run, ...]] = []
        self._taken: TakenTables | None = None

    def take(self, names: list[str], local: list[tuple[Run, ...]]) -> TakenTables | None:
        """The tables of sequences with all their own blocks, needed together; None if one has none that is one run of
        blocks in the pool, is too long, or finds no place. It is the same object as in the step before as long as it
        says the same but for `counts`."""
        if self._taken is None or names != self._names:
            return self._take_all(names, local)
        if local != self._locals:
            taken = self._taken
            changed = [index for index, (new, old) in enumerate(zip(local, self._locals, strict=True)) if new != old]
            firsts = taken.first_blocks[changed]
            for index in changed:
                if self._changed(names[index], local[index], self._kept[names[index]]) is None:
                    self._taken = None
                    return None
            tables = taken.tables[changed]
            if not np.array_equal(firsts, self._first_blocks[tables]):
                return self._take_all(names, local)
            taken.counts[changed] = self._counts[tables]
            self._locals = local
        return self._taken

    def slots(self, taken: TakenTables, blocks: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The slots of these blocks, one of each sequence; None if one is not there."""
        place = blocks - taken.first_blocks
        if not ((place >= 0) & (place < taken.counts)).all():
            return None
        found: NDArray[np.int64] = self._slots[taken.tables, place]
        return found

    def put_changes(self, at: NDArray[np.int64], slots: NDArray[np.int64], device: Device) -> None:
        """Where `tensor` has to change, and to what, into what a graph will read of both; where they are more than fit,
        `tensor` is changed at once."""
        places, values = self.take_changes()
        if len(places) <= len(at):
            at[: len(places)], slots[: len(places)] = places, values
        else:
            there = device.to_device(torch.from_numpy(places), torch.from_numpy(values.astype(np.int32)))
            self.tensor.index_copy_(0, *there)

    def take_changes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where `tensor` has to change, and to what."""
        if not self._changes:
            return _NOTHING
        at = np.concatenate([np.arange(first, end) for first, end in self._changes.values()])
        self._changes.clear()
        return at, self._slots.reshape(-1)[at]

    def forget(self, request_ids: Iterable[str]) -> None:
        """Their tables are free for others."""
        self._taken = None
        self._free += [kept.place for name in request_ids if (kept := self._kept.pop(name, None)) is not None]

    def _take_all(self, names: list[str], local: list[tuple[Run, ...]]) -> TakenTables | None:
        self._step += 1
        self._taken = None
        places = []
        for name, runs in zip(names, local, strict=True):
            kept = self._kept.get(name)
            if kept is not None and kept.local == runs:
                kept.used = self._step
                places.append(kept.place)
            elif (place := self._changed(name, runs, kept)) is not None:
                places.append(place)
            else:
                return None
        tables = np.array(places)
        self._names, self._locals = names, local
        self._taken = TakenTables(tables, self._first_blocks[tables], self._counts[tables])
        return self._taken

    def _changed(self, name: str, local: tuple[Run, ...], kept: _Kept | None) -> int | None:
        if not self._fits(local):
            return None
        if kept is None:
            if not self._free and not self._evict():
                return None
            kept = self._kept[name] = _Kept(self._free.pop(), (), self._step)
            self._counts[kept.place] = 0
        kept.used = self._step
        place, first_block = kept.place, local[0].first_block
        same, old = 0, kept.local
        if old and old[0].first_block == first_block:
            for run, was in zip(local, old, strict=False):
                if run.first_slot != was.first_slot:
                    break
                same += min(run.num_blocks, was.num_blocks)
                if run.num_blocks != was.num_blocks:
                    break
        slots = _slots_of(local, same)
        count = same + len(slots)
        self._slots[place, same:count] = slots
        self._first_blocks[place], self._counts[place], kept.local = first_block, count, local
        if len(slots):
            start = place * self._max_blocks
            before = self._changes.get(place, (start + same, start + count))
            # Steps that are computed otherwise leave theirs to a later one.
            self._changes[place] = min(before[0], start + same), max(before[1], start + count)
        return place

    def _fits(self, local: Sequence[Run]) -> bool:
        if not local:
            return False
        end = local[0].first_block
        for run in local:
            if run.first_block != end or run.num_blocks <= 0 or run.first_slot + run.num_blocks > self._num_slots:
                return False
            end += run.num_blocks
        return end - local[0].first_block <= self._max_blocks

    def _evict(self) -> bool:
        """The table that was not needed for longest, unless all are needed now."""
        name, kept = min(self._kept.items(), key=lambda item: item[1].used)
        if kept.used == self._step:
            return False
        self.forget([name])
        return True


_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))


def _slots_of(local: Sequence[Run], skipped: int) -> NDArray[np.int64]:
    """The slots of all blocks but the first ones."""
    parts = []
    for run in local:
        here = min(skipped, run.num_blocks)
        skipped -= here
        if here < run.num_blocks:
            parts.append(np.arange(run.first_slot + here, run.first_slot + run.num_blocks))
    return np.concatenate(parts) if parts else _NOTHING[0]
