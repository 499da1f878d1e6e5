"""Options of several values: separated by commas, or given again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import click

from distkv.cli.param_types import ParamType

Value = TypeVar("Value")


class ListType(ParamType):
    """Values of one kind, separated by commas."""

    def __init__(self, kind: ParamType) -> None:
        self.kind = kind
        self.name = kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self.kind.convert(one.strip(), param, ctx) for one in str(value).split(","))


def distinct(given: Iterable[Iterable[Value]]) -> list[Value]:
    """All of them in order, each once."""
    return list(dict.fromkeys(one for some in given for one in some))
