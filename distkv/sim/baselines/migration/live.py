"""One request on its way to another instance while it decodes (Llumnix §4.2).

What it has in memory is copied first, while it decodes; then what was written meanwhile, again and again; and when that
is little, it stops, the rest follows, and it goes on there. Memory there is kept for it before each copy. Whenever
there is none, or the request ends or is preempted, the migration ends and the request stays where it was.
"""

from __future__ import annotations

from collections.abc import Callable

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.timed.agenda import Action

LAST_BLOCKS = 16
"""When no more are left to copy, the request stops (Llumnix's --migration-last-stage-max-blocks)."""
MOST_COPIES = 3
"""A request that is no nearer to its end after so many stays (--migration-max-stages)."""
Copy = Callable[[BatchingInstance, BatchingInstance, int, Action], None]
"""Reads so many rBlocks from one instance to another, then calls."""


class Migration:
    """From `source` to `target`. moved: whether it arrived. blocks: that were copied."""

    def __init__(
        self,
        one: Served,
        source: BatchingInstance,
        target: BatchingInstance,
        copy: Copy,
        over: Callable[[Migration], None],
    ) -> None:
        """over: called when it is at its end, whichever."""
        self.one = one
        self.source = source
        self.target = target
        self.moved = False
        self.blocks = 0
        self._copy = copy
        self._over = over
        self._life = one.lives
        self._copies = 0
        self._is_stopped = self._is_aborted = False

    def begin(self) -> None:
        """The next copy, or the last."""
        if self._is_aborted:
            return
        self.source.settle()
        if not self._is_there:
            self._end()
        elif self.source.blocks_for(self.one.computed) - self.blocks <= LAST_BLOCKS:
            self.source.between_steps(self._stop)
        elif self._copies == MOST_COPIES:
            self._end()
        else:
            self._copies += 1
            full = self.one.computed // self.source.block_tokens
            self._read(full - self.blocks, self.begin)

    @property
    def _is_there(self) -> bool:
        """Whether it runs where it did, and what was copied of it still counts."""
        return not self.one.is_over and self.one in self.source.running and self.one.lives == self._life

    def _stop(self) -> None:
        """Between two steps: it leaves the batch, and what is left is copied."""
        if self._is_aborted:
            return
        rest = self.source.blocks_for(self.one.computed) - self.blocks
        if not self._is_there or not self.target.reserve(self.one, rest):
            self._end()
            return
        self.source.take_out(self.one)
        self._is_stopped = True
        self.blocks += rest
        self._copy(self.source, self.target, rest, self._arrive)

    def _read(self, blocks: int, then: Action) -> None:
        if not self.target.reserve(self.one, blocks):
            self._end()
            return
        self.blocks += blocks
        self._copy(self.source, self.target, blocks, then)

    def abort(self) -> bool:
        """One of the instances has died. Where the target did, the request stays; returns whether it had stopped and
        is lost with the source, which has it in its batch no more."""
        self._is_aborted = True
        if self._is_stopped and self.source.alive:
            self.source.take_in_again(self.one)
        self._end()
        return self._is_stopped and not self.source.alive

    def _arrive(self) -> None:
        if self._is_aborted:
            return
        self.moved = True
        self.one.at = self.target.name
        self.target.arrived(self.one)
        self.source.release(self.one)
        self._over(self)

    def _end(self) -> None:
        """It stays."""
        self.target.release(self.one)
        self._over(self)
