"""A sequence whose oldest blocks lie at creditors, more of them from time to time."""

from __future__ import annotations

from dataclasses import dataclass, field

from distkv.engine.step.runner import StepRunner
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import RemoteSpan, SeqStep, Step
from tests.engine.harness import GREEDY, Engine, seq_step

P = 4
"""Tokens of a block."""


@dataclass
class RemoteSequence:
    """On one engine."""

    engine: Engine
    name: str
    prompt: list[int]
    room: int = 40
    end: int = 0
    lent: int = 0
    remote: list[RemoteSpan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = self.engine.table(self.room * P, scattered=True)

    def lend(self, creditor: str, count: int) -> None:
        """So many of the oldest local blocks, all of whose keys are there."""
        if creditor not in self.engine.peers.creditors:
            self.engine.add_creditor(creditor, num_slots=256)
        self.remote.append(self.engine.lend(creditor, self.table, self.lent, count))
        self.lent += count

    def step(self) -> SeqStep:
        """The prompt, then one token after another."""
        start, self.end = self.end, self.end + 1 if self.end else len(self.prompt)
        local: tuple[Run, ...] = self.table[self.lent : -(-self.end // P)]
        ids = self.prompt if not start else ()
        return seq_step(
            ids, start, self.end, local, name=self.name, remote=tuple(self.remote), sample=GREEDY, version=self.lent
        )


def tokens_of(*seqs: RemoteSequence, runner: StepRunner | None = None) -> list[int | None]:
    """Of one step of these, all of one engine, by its own runner or another."""
    runner = runner or seqs[0].engine.runner
    step = Step(step_id=next(seqs[0].engine._step_ids), seqs=tuple(one.step() for one in seqs))
    return [result.token for result in runner.run(step)]
