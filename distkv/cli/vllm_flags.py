"""Flags of `vllm serve` on our command lines: as those of `distkv serve`, which has vLLM's names wherever it can, and
what programs say of those that have no meaning here."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from distkv.cli.options import CONFIG_PATH
from distkv.config.without_meaning import WITHOUT_MEANING
from distkv.errors import ConfigError

INSTANCES = "--data-parallel-size"
SHORT = {
    "-dp": INSTANCES,
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-asc": "--api-server-count",
    "-q": "--quantization",
    "-O": "--optimization-level",
    "-cc": "--compilation-config",
    "--uvicorn-log-level": "--log-level",
}
SEVERAL = frozenset({"--served-model-name", "--api-key", "--allowed-origins"})
"""Take several words there, or a list of JSON, if none is behind =; and one with commas here."""
VALUES = {
    "--dtype": {"half": "float16", "float": "float32"},
    "--kv-cache-dtype": {"fp8_e4m3": "fp8"},
    "--max-model-len": {"-1": "auto"},
    "--tool-call-parser": {"llama4_json": "llama3_json"},
    "--generation-config": {"vllm": "none"},
    "--log-level": {"critical": "error", "trace": "debug"},
}


class KnowsVllm(click.Command):
    """A command that says of vLLM's flags without a meaning here what to do instead."""

    instances = "a distkv-instance each"
    """What to use for several instances."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            args = self.ours(args, {flag for param in self.params for flag in (*param.opts, *param.secondary_opts)})
        return super().parse_args(ctx, args)

    def ours(self, arguments: Sequence[str], known: Collection[str]) -> list[str]:
        """The arguments for a command that has the flags `known`. Raises ConfigError."""
        return without_meaningless(arguments, known, self.instances)


def translated(arguments: Sequence[str], known: Collection[str]) -> list[str]:
    """The arguments for a command that has the flags `known`. What that does not have is left to it.

    Raises ConfigError for what has no meaning here.
    """
    words = deque(without_meaningless(arguments, known, INSTANCES))
    out: list[str] = []
    for _, flag, equals, value in _before_dashes(words):
        if flag in SEVERAL:
            values = [value] if equals else []
            while not equals and words and not words[0].startswith("-"):
                values.append(words.popleft())
            out.append(f"{flag}={','.join(part for one in values for part in _listed(one))}")
        elif flag in VALUES:
            value = value if equals or not words else words.popleft()
            out.append(f"{flag}={VALUES[flag].get(value, value)}")
        else:
            out.append(f"{flag}{equals}{value}")
    return [*out, *words]


def check_no_model_taken(ctx: click.Context, params: Mapping[str, Any]) -> None:
    """Raise click.UsageError where no model is given, and the last word that a flag of several took is a directory."""
    is_given = params["checkpoint"] is not None or ctx.get_parameter_source("model") is not ParameterSource.DEFAULT
    if is_given or CONFIG_PATH in ctx.meta:
        return
    for flag in sorted(SEVERAL):
        words = params[flag[2:].replace("-", "_")]
        if words and Path(words[-1]).is_dir():
            raise click.UsageError(f"{flag} takes all words behind it, also {words[-1]}; give the model first", ctx)


def without_meaningless(arguments: Sequence[str], known: Collection[str], instances: str) -> list[str]:
    """The arguments, as they are, for a command with the flags `known`, without those of vLLM's that ask for what is so
    anyway. instances: what to use for several instances.

    Raises ConfigError for what has no meaning here.
    """
    words = deque(arguments)
    out: list[str] = []
    for word, flag, equals, value in _before_dashes(words):
        if flag in WITHOUT_MEANING and flag not in known:
            _refuse(flag, equals, value, words, instances)
        else:
            out.append(word)
    return [*out, *words]


def _before_dashes(words: deque[str]) -> Iterator[tuple[str, str, str, str]]:
    """Take each word up to -- out of them, with its parts; whoever asks may take more."""
    while words and words[0] != "--":
        word = words.popleft()
        yield word, *_parts(word)


def _parts(word: str) -> tuple[str, str, str]:
    """The flag by its long name, = if there is one, and what is behind that."""
    if word[:2] == "-O" and word[2:3] not in ("", "="):
        return SHORT["-O"], "=", word[2:]
    flag, equals, value = word.partition("=")
    return SHORT.get(flag, flag.replace("_", "-") if flag.startswith("--") else flag), equals, value


def _refuse(flag: str, equals: str, value: str, words: deque[str], instances: str) -> None:
    """Raise ConfigError, unless the flag asks for what is so anyway; then take its value from the words.

    instances: what to use for several instances.
    """
    found = WITHOUT_MEANING[flag]
    if not equals and found.so_anyway - {""} and words:
        value = words.popleft()
    if value not in found.so_anyway:
        raise ConfigError(flag, found.why, found.instead.replace(INSTANCES, instances))


def _listed(value: str) -> list[str]:
    if value.startswith("["):
        try:
            return [str(one) for one in json.loads(value)]
        except ValueError:
            return [value]
    return [value]
