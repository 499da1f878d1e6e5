"""A trace of one instance: every message it sends and gets, and when; one JSON object per line.

`t_s` is the host's monotonic clock, so the traces of instances on one host can be laid side by side. What users wrote
and what they got is not in it.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from distkv.control.commands import Answer, Command, TellGManager, TellPeer, TellWorker
from distkv.errors import ConfigError
from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_worker import Step

_FACTS = (
    "request_id", "span_id", "step_id", "checksum_id", "pull_id", "query_id", "renewal", "borrow_id", "seq", "index",
    "num_blocks", "free_blocks", "source_id", "reason", "problem", "compute_s", "finish_reason", "kind",
)  # fmt: skip
_SIZES = ("slots", "blocks", "spans", "candidates", "refused", "entries", "members", "token_ids")


class Trace:
    """Writes one line per message. A trace without a file does nothing, and one that cannot be written on ends."""

    def __init__(self, path: str | None, instance_id: str) -> None:
        """Raises ConfigError when the file cannot be opened."""
        self._instance_id = instance_id
        try:
            self._file = None if path is None else Path(path).open("ab", buffering=0)  # noqa: SIM115 - see __exit__
        except OSError as error:
            raise ConfigError("trace_file", f"cannot write {path}: {error.strerror or error}") from None

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
            case TellWorker():
                self._write("sent", "worker", command.body)
            case TellGManager():
                self._write("sent", "gmanager", command.body)
            case TellPeer():
                self._write("sent", command.instance_id, command.body)
            case Answer():
                self._write("sent", "asker", command.body)
            case _:
                pass

    def received(self, sender: str, body: Control) -> None:
        """A message came in."""
        if self._file is not None:
            self._write("received", sender, body)

    def _write(self, event: str, other: str, body: Control) -> None:
        assert self._file is not None
        line = {
            "t_s": time.monotonic(),
            "instance_id": self._instance_id,
            "event": event,
            "other": other,
            "type": type(body).__name__,
            **_facts(body),
        }
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            structlog.get_logger().error("the trace ends", file=self._file.name, problem=error.strerror or str(error))
            self._file.close()
            self._file = None


def _facts(body: Control) -> dict[str, object]:
    facts = {name: getattr(body, name) for name in _FACTS if hasattr(body, name)}
    facts |= {f"num_{name}": len(getattr(body, name)) for name in _SIZES if hasattr(body, name)}
    span = getattr(body, "span", None)
    if isinstance(span, SpanRef):
        facts["span_id"] = span.span_id
    if isinstance(body, Step):
        facts["ranges"] = {seq.request_id: [seq.start, seq.end] for seq in body.seqs}
    return facts
