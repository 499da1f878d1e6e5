"""`distkv completion`: what shells need to complete the programs' flags and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAMS = ("distkv", "distkv-gmanager", "distkv-instance", "distkv-gateway")
SHELLS = ("bash", "zsh", "fish")
HELP = """Print what makes a shell complete the commands, flags and values of distkv and its daemons.

\b
Examples:
  source <(distkv completion bash)
  source <(distkv completion zsh)
  distkv completion fish > ~/.config/fish/conf.d/distkv.fish
"""


def script(shell: str) -> str:
    """The completion of all programs for "bash", "zsh" or "fish"."""
    found = get_completion_class(shell)
    assert found is not None
    # What click makes names the program only; the shell runs it for the options when the user presses Tab.
    stand_in = click.Command("")
    return "\n".join(found(stand_in, {}, name, _variable(name)).source() for name in PROGRAMS)


def _variable(program: str) -> str:
    return f"_{program}_COMPLETE".replace("-", "_").upper()


def _command(shell: str) -> int:
    click.echo(script(shell))
    return 0


command = click.Command(
    "completion",
    callback=_command,
    params=[click.Argument(["shell"], type=click.Choice(SHELLS))],
    help=HELP,
    context_settings={"max_content_width": 100},
)
