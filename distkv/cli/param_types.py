"""How values are written on the command line, besides settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distkv.config import parse_count

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic in its type information only
else:
    ParamType = click.ParamType


class CountType(ParamType):
    """A whole number with an optional suffix: 4096, 4K."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_count(value)
        except ValueError:
            self.fail(f"expected a whole number such as 256 or 4K, got {value!r}", param, ctx)


class LogitBiasType(ParamType):
    """ID=BIAS as (token id, bias)."""

    name = "bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        token, _, bias = value.partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"expected a token id and its bias such as 42=-1.5, got {value!r}", param, ctx)
