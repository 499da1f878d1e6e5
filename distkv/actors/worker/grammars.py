"""The worker's grammars: a thread compiles them, so that a large one delays no Step."""

from __future__ import annotations

import contextlib
import queue
from pathlib import Path

from distkv.engine.sampling.constraints import Constraints
from distkv.errors import CheckpointError, InvalidParams
from distkv.text.structured_output import Vocabulary, compiled
from distkv.text.tokenizer import Tokenizer
from distkv.wire.messages.common import clipped
from distkv.wire.messages.from_worker import Compiled
from distkv.wire.messages.to_worker import Compile
from distkv.wire.worker_pipe import WorkerEnd

LARGE = 16384


class Grammars:
    """`run` is the thread; `put` is for any."""

    def __init__(self, results: WorkerEnd, model_dir: str, constraints: Constraints, vocab_size: int) -> None:
        self._results, self._model_dir = results, model_dir
        self._constraints, self._vocab_size = constraints, vocab_size
        self._waiting: queue.SimpleQueue[tuple[Compile, str]] = queue.SimpleQueue()
        self._vocabulary: Vocabulary | None = None

    def prepare(self) -> None:
        """Read a large vocabulary before there are Steps: for each 100,000 tokens that holds the interpreter for about
        half a second. A small one is read when the first grammar comes."""
        if self._vocab_size >= LARGE:
            with contextlib.suppress(InvalidParams, CheckpointError, ImportError):  # what every `Compile` is answered
                self._vocabulary = self._load()

    def put(self, command: Compile, cause: str) -> None:
        """Compile this as soon as those before are."""
        self._waiting.put((command, cause))

    def run(self) -> None:
        """Compile, and answer; for ever."""
        while True:
            command, cause = self._waiting.get()
            problem = clipped(self._compile(command))
            self._results.send(Compiled(grammar_id=command.grammar_id, problem=problem), cause)

    def _compile(self, command: Compile) -> str:
        """Why there is no such grammar; empty if there is one."""
        try:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            self._constraints.add(command.grammar_id, compiled(command.output, self._vocabulary))
        except (InvalidParams, CheckpointError, ImportError) as error:
            return str(error)
        return ""

    def _load(self) -> Vocabulary:
        tokenizer = Tokenizer.from_dir(Path(self._model_dir))
        if tokenizer is None:
            raise CheckpointError(self._model_dir, "has no tokenizer.json, which structured output needs")
        return Vocabulary(tokenizer, self._vocab_size)
