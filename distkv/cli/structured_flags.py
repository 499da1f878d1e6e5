"""Flags that say what an answer must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distkv.structured_output import StructuredOutput

FLAGS = ("json_object", "json_schema", "regex", "choice", "grammar")


def structured_flags() -> list[click.Option]:
    """One of these may be given."""
    file = click.Path(path_type=Path, exists=True, dir_okay=False)
    return [
        click.Option(["--json-object"], is_flag=True, help="Answer with a JSON object."),
        click.Option(
            ["--json-schema"], type=file, metavar="FILE", help="Answer with JSON that is valid by this schema."
        ),
        click.Option(["--regex"], help="Answer with a text that this matches from beginning to end."),
        click.Option(["--choice"], multiple=True, help="Answer with one of these; to be repeated."),
        click.Option(["--grammar"], type=file, metavar="FILE", help="Answer with a text of this Lark or GBNF grammar."),
    ]


def structured_output(options: dict[str, Any]) -> StructuredOutput | None:
    """What the flags say. Raises click.UsageError for more than one of them."""
    given = [name for name in FLAGS if options[name] not in (None, False, ())]
    if len(given) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{flags} are given; give one of them")
    match given:
        case ["json_object"]:
            return StructuredOutput.json_object()
        case ["json_schema"]:
            return StructuredOutput.json_schema(_read(options["json_schema"]))
        case ["regex"]:
            return StructuredOutput.regex(options["regex"])
        case ["choice"]:
            return StructuredOutput.choice(options["choice"])
        case ["grammar"]:
            return StructuredOutput.grammar(_read(options["grammar"]))
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{file} is not UTF-8 text") from None
