"""A trace of one instance: what was sent and what came back, when; one JSON object per line.

`t_s` is the host's monotonic clock, so traces of instances on one host can be laid side by side.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from distkv.control.commands import Answer, Command, TellPeer, TellWorker
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.from_worker import Pulled, StepResult
from distkv.wire.messages.to_rmanager import Complete, Expose
from distkv.wire.messages.to_worker import Pull, Step


class Trace:
    """Writes events of steps and moves. A trace without a file does nothing."""

    def __init__(self, path: str | None, instance_id: str) -> None:
        self._file = None if path is None else Path(path).open("ab", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._instance_id = instance_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def sent(self, command: Command) -> None:
        """A command is being carried out."""
        if self._file is None:
            return
        match command:
            case TellWorker(body=Step() as step):
                ranges = {seq.request_id: [seq.start, seq.end] for seq in step.seqs}
                self._write("step_sent", step_id=step.step_id, ranges=ranges)
            case TellWorker(body=Pull() as pull):
                self._write("pull_sent", pull_id=pull.pull_id, source=pull.source_id, blocks=len(pull.slots))
            case TellPeer(body=Expose() as expose):
                self._write("expose_sent", span_id=expose.span.span_id, index=expose.index, blocks=len(expose.blocks))
            case Answer(body=Complete() as complete):
                self._write("complete_sent", span_id=complete.span.span_id, index=complete.index)
            case _:
                pass

    def received(self, body: Control) -> None:
        """A message came in."""
        if self._file is None:
            return
        match body:
            case StepResult():
                self._write("step_result", step_id=body.step_id, compute_s=body.compute_s)
            case Pulled():
                self._write("pulled", pull_id=body.pull_id, problem=body.problem)
            case Complete():
                self._write("complete", span_id=body.span.span_id, index=body.index, blocks=body.num_blocks)
            case _:
                pass

    def _write(self, event: str, **fields: object) -> None:
        assert self._file is not None
        line = {"t_s": time.monotonic(), "instance_id": self._instance_id, "event": event, **fields}
        self._file.write(msgspec.json.encode(line) + b"\n")
