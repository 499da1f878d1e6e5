"""rBlocks of one instance that go to another while both decode: checksum → pull → verified, as rManagers have it."""

from __future__ import annotations

import asyncio
import time

from distkv.bench.move_cells.instance import Instance

DRAIN_S = 30.0


class Moving:
    """Moves some rBlocks of the debtor's first sequence after its steps, from `begin` to `end`.

    They go round and round, each time to other slots of the creditor's span. One whose slots others are still on their
    way to waits for these, as those of an rManager have slots of their own. moved: so far, each of them verified.
    """

    def __init__(self, debtor: Instance, creditor: Instance) -> None:
        self.debtor, self.creditor = debtor, creditor
        self._blocks, self._every, self._steps = 0, 1, 0
        self._turn = self._due = self._under_way = self.moved = 0
        self._busy: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived: dict[int, int] = {}

    def begin(self, blocks: int, every: int) -> None:
        """Move so many after every `every`th step from now on."""
        self._blocks, self._every, self._due = blocks, every, 0
        self.debtor.on_step = self._on_step

    def end(self) -> None:
        """Move no more; returns when the last ones have arrived. Raises what has failed."""
        self.debtor.on_step = None
        self._due = 0
        deadline = time.monotonic() + DRAIN_S
        while self._under_way and time.monotonic() < deadline:
            self.debtor.check()
            time.sleep(0.002)
        self.debtor.check()
        if self._under_way:
            raise RuntimeError(f"{self._under_way} moves did not end within {DRAIN_S:g} s")

    def wrong_slots(self) -> int:
        """Slots of the creditor that do not hold what was moved there last, by checksums of what lies there now."""
        slots = sorted(self._arrived)
        found = self.creditor.loop.call(self.creditor.checksums(slots)) if slots else ()
        return sum(self._arrived[slot] != one for slot, one in zip(slots, found, strict=True))

    def _on_step(self) -> None:
        self._steps += 1
        if self._blocks and self._steps % self._every == 0:
            self._due += 1
            self._go_on()

    def _go_on(self) -> None:
        """Begin what is due, as far as nothing is on its way to its slots."""
        debtor, creditor = self.debtor, self.creditor
        while self._due > 0:  # `end` may set it meanwhile, in another thread
            turns = range(self._turn, self._turn + self._blocks)
            slots = [creditor.lent[(turn + turn // debtor.num_blocks) % len(creditor.lent)] for turn in turns]
            if not self._busy.isdisjoint(slots):
                return
            self._due -= 1
            self._turn = turns.stop
            self._busy.update(slots)
            self._under_way += 1
            blocks = [turn % debtor.num_blocks for turn in turns]
            task = asyncio.get_running_loop().create_task(self._move(blocks, slots))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _move(self, blocks: list[int], slots: list[int]) -> None:
        try:
            debtor, creditor = self.debtor, self.creditor
            sums = await debtor.checksums(blocks)
            pulling = creditor.loop.start(creditor.pull(debtor.name, blocks, slots, sums))
            if problem := await asyncio.wrap_future(pulling):
                raise RuntimeError(f"a move failed: {problem}")
            self._arrived.update(zip(slots, sums, strict=True))
            self.moved += len(blocks)
        except Exception as error:
            self.debtor.fail(error)
        finally:
            self._busy.difference_update(slots)
            self._under_way -= 1
            self._go_on()
