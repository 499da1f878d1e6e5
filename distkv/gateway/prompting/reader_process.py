"""A process that reads long bodies: `python -m distkv.gateway.prompting.reader_process`, started by
`readers.LongBodies`.

Decoding JSON, templates and lists of tokens hold the interpreter for as long as the body is; here they hold nobody's
event loop. It reads frames from standard input (the configuration, then tasks, each with its body) and writes an answer
to each; it ends when its gateway does.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from typing import BinaryIO, Literal

import msgspec

from distkv.config import GatewayConfig
from distkv.gateway.prompting import reading
from distkv.gateway.prompting.reading import ChatRead, CompletionRead, Written
from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import ApiError, ErrorFacts, invalid
from distkv.log.tracebacks import traceback_text
from distkv.process_priority import begin_helper

Kind = Literal["completion", "chat", "tokenize", "detokenize"]
Outcome = CompletionRead | ChatRead | Written
READERS: Mapping[Kind, Callable[[ServedModel, bytes, int | None], Outcome]] = {
    "completion": reading.read_completion,
    "chat": reading.read_chat,
    "tokenize": reading.tokenize,
    "detokenize": reading.detokenize,
}
FRAME = struct.Struct("!Q")


def read(model: ServedModel, kind: Kind, raw: bytes, most: int | None) -> Outcome:
    """What the one of READERS makes of a body. Raises ApiError as it does, and 400 for what is nested so deep that
    something on the way gave up."""
    try:
        return READERS[kind](model, raw, most)
    except RecursionError:
        raise invalid("the body is nested too deep") from None


class Task(msgspec.Struct, frozen=True):
    """How the body in the next frame is to be read, and the longest request that may fit."""

    kind: Kind
    most: int | None


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The ApiError that reading raised."""

    status: int
    facts: ErrorFacts


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Reading raised what it should not."""

    traceback: str


class PackedPrompt(msgspec.Struct, frozen=True):
    """A Prompt; ids are packed."""

    ids: bytes
    text: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """What came of a task. prompts: those of the outcome, which is without them; what was written comes in the next
    frame."""

    outcome: CompletionRead | ChatRead | Written | Refusal | Failure
    prompts: list[PackedPrompt] = []


def answer(model: ServedModel, task: Task, raw: bytes) -> list[bytes]:
    """Carry a task out; the frames that say what came of it. Raises MemoryError: who ends gives back what it has."""
    try:
        outcome = read(model, task.kind, raw, task.most)
    except ApiError as error:
        return [msgspec.msgpack.encode(Answer(Refusal(error.status, error.body.error)))]
    except MemoryError:
        raise
    except Exception as error:
        return [msgspec.msgpack.encode(Answer(Failure(traceback_text(error))))]
    if isinstance(outcome, Written):
        return [msgspec.msgpack.encode(Answer(Written([]))), b"".join(outcome.parts)]
    packed = [PackedPrompt(bytes(prompt.token_ids.packed), prompt.text) for prompt in outcome.prompts]
    return [msgspec.msgpack.encode(Answer(msgspec.structs.replace(outcome, prompts=[]), packed))]


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None when there is no more."""
    head = stream.read(FRAME.size)
    return stream.read(FRAME.unpack(head)[0]) if len(head) == FRAME.size else None


def main() -> None:
    """Serve until standard input ends."""
    begin_helper()
    config = read_frame(sys.stdin.buffer)
    if config is None:
        return
    model = ServedModel.load(msgspec.msgpack.decode(config, type=GatewayConfig))
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        task, raw = msgspec.msgpack.decode(frame, type=Task), read_frame(sys.stdin.buffer)
        if raw is None:
            return
        for found in answer(model, task, raw):
            sys.stdout.buffer.write(FRAME.pack(len(found)))
            sys.stdout.buffer.write(found)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
