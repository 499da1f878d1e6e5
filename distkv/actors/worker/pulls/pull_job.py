"""One pull in the hands of the thread of its source: what of it is read, and what is wrong with it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Protocol

from distkv.checksums import unpack
from distkv.errors import DistKVError
from distkv.wire.links import TensorLink
from distkv.wire.messages.common import clipped
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_worker import Pull


class Ends(Protocol):
    """Where pulls end."""

    def pulled(self, pulled: Pulled, cause: str) -> None:
        """Send the end of a pull, in the order of these calls."""


class PullJob:
    """checksums: what its blocks must have. link: by which it is read, once it is begun. pins: what keeps its
    destination from being given to others until its end was said. taken: its blocks that were given to reads. reads:
    those under way. wrong: its blocks whose checksum is another. problem: why it has failed. cause: of its end."""

    def __init__(self, pull: Pull, cause: str) -> None:
        self.pull, self.cause = pull, cause
        self.checksums = unpack(pull.checksums)
        self.link: TensorLink | None = None
        self.pins = ExitStack()
        self.taken = self.reads = self.wrong = 0
        self.problem = ""
        self.is_over = False

    @property
    def num_blocks(self) -> int:
        return len(self.pull.slots)

    @property
    def left(self) -> int:
        """Blocks that no read has taken yet."""
        return 0 if self.problem else self.num_blocks - self.taken

    def fail(self, error: DistKVError | str) -> None:
        """Nothing more of it is read; the first reason is the one that is said."""
        self.problem = self.problem or clipped(str(error))

    def end(self, ends: Ends) -> None:
        """Say how it ended; within its pins, so that a revocation is said after it."""
        assert not (self.is_over or self.reads or self.left)
        self.is_over = True
        with self.pins:
            ends.pulled(Pulled(pull_id=self.pull.pull_id, problem=self.problem), self.cause)
