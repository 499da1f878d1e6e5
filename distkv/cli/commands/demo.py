"""`distkv demo`: one prompt that no instance could hold alone, checked against transformers where that is installed."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from distkv.cli.param_types import CountType
from distkv.cli.signals import signals_interrupt

HELP = """Start three instances with small KV memory, give them a document that none of them could hold alone, and ask
for facts in it. Shows the answers as they come, where the KV lies, what moved, how fast it went, and, if transformers
is installed, that the tokens are those of transformers. An answer is right only if every remote rBlock was attended to.
Everything runs on this machine and is gone afterwards, also after Ctrl-C.

--ask takes a fact and a question of your own. The demo model matches words: the fact says what something is (a code
of digits, a name, a date, a word or two), and the question, What is ...?, names it in the same words:

\b
  The keeper of the old mill is Greta Holm.
  What is the keeper of the old mill?

\b
Examples:
  distkv demo
  distkv demo --ask
  distkv demo --tokens 12000 --kv-tokens 4096 --seed 7
  distkv demo --instances 5 --kv-tokens 512
"""


def _command(**options: Any) -> int:
    # The demo loads torch; a mistake on the command line need not wait for that.
    from distkv.demo.run.questions import OwnFact
    from distkv.demo.run.walkthrough import Options, run

    own = None
    if options.pop("ask"):
        try:
            with signals_interrupt(once=True):
                own = OwnFact(
                    click.prompt("a fact, such as: The keeper of the old mill is Greta Holm.\nfact"),
                    click.prompt("a question in its words, such as: What is the keeper of the old mill?\nquestion"),
                )
        except click.Abort as abort:
            click.echo()
            if isinstance(abort.__context__, EOFError):
                raise click.UsageError(
                    "--ask takes a fact and a question, a line each; the input ended before"
                ) from None
            click.echo("interrupted; nothing was started", err=True)
            return 130
    try:
        with signals_interrupt(once=True):
            return 0 if run(Options(own=own, **options), Console()) else 1
    except KeyboardInterrupt:
        click.echo("interrupted; everything is stopped", err=True)
        return 130


command = click.Command(
    "demo",
    callback=_command,
    params=[
        click.Option(
            ["--instances"], type=click.IntRange(2, 9), default=3, show_default=True, help="How many instances."
        ),
        click.Option(
            ["--kv-tokens"],
            type=click.IntRange(128, 65536),
            default=1024,
            show_default=True,
            help="KV pool of each instance in tokens; the document is longer.",
        ),
        click.Option(
            ["--tokens"],
            type=CountType(),
            help="Tokens of the document; half an instance less than all hold if not set.",
        ),
        click.Option(["--seed"], type=int, default=0, show_default=True, help="Of the document and its facts."),
        click.Option(["--ask"], is_flag=True, help="Put a fact and a question of your own, as above."),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
