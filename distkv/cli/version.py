"""`--version` of all programs."""

from __future__ import annotations

import click

import distkv


def version_option(program: str) -> click.Option:
    """Prints the version of a program and exits."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            click.echo(f"{program} {distkv.__version__}")
            ctx.exit(0)

    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Print the version and exit.",
    )
