"""What every driver does: load a model once, then answer requests in JSON lines until standard input ends."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

Prompts = list[list[int]]
Arrivals = Iterator[tuple[int, int]]
"""(prompt, token), each yielded at the moment it is there."""


class Engine(Protocol):
    """A baseline with a model loaded."""

    settings: dict[str, Any]
    versions: dict[str, str]

    def run(self, prompts: Prompts, max_tokens: int) -> Arrivals:
        """Greedy tokens of all prompts at once, `max_tokens` of each, end tokens ignored."""
        ...


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that all drivers have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="what to load")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="longest prompt + output")
    parser.add_argument("--sequences", type=int, required=True, help="most prompts at once")
    return parser


def private_stdout() -> Any:
    """A file for answers that nothing else writes to: what the baseline prints goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def serve(engine: Engine, answers: Any) -> None:
    """Say what was loaded; then answer {"prompts", "max_tokens"} with {"token_ids", "times_s"}, a list per prompt.

    Times count from the moment the request was read. A failure is answered with {"error"}.
    """
    _write(answers, {"settings": engine.settings, "versions": engine.versions})
    for line in sys.stdin:
        request = json.loads(line)
        prompts: Prompts = request["prompts"]
        token_ids: list[list[int]] = [[] for _ in prompts]
        times_s: list[list[float]] = [[] for _ in prompts]
        started = time.perf_counter()
        try:
            for prompt, token in engine.run(prompts, request["max_tokens"]):
                times_s[prompt].append(time.perf_counter() - started)
                token_ids[prompt].append(token)
        except Exception as error:
            _write(answers, {"error": f"{type(error).__name__}: {error}"})
            continue
        _write(answers, {"token_ids": token_ids, "times_s": times_s})


def _write(answers: Any, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
