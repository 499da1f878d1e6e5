"""What was measured already, a line of JSON each: long work goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

Answers = list[list[int]]
"""Token ids, one list per question."""


class _Line(msgspec.Struct, frozen=True):
    key: str
    answers: Answers


class AnswerCache:
    """Answers by key, also in the file at `path` if there is one given, which is read first. Raises click.UsageError
    when it holds anything else."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._answers: dict[str, Answers] = {}
        if path is None or not path.exists():
            return
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                found = msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError:
                raise click.UsageError(f"line {number} of {path} was not written by --keep") from None
            self._answers[found.key] = found.answers

    def find(self, key: str) -> Answers | None:
        """What was added under the key, by this run or an earlier one."""
        return self._answers.get(key)

    def add(self, key: str, answers: Answers) -> Answers:
        """The answers, kept before this returns."""
        self._answers[key] = answers
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(_Line(key, answers)) + b"\n")
        return answers
