"""`distkv generate`: one prompt, streamed to the terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from distkv.cli.terminal import signals_interrupt
from distkv.client.blocking import Client
from distkv.config import DEFAULT_GMANAGER
from distkv.types import SamplingParams

HELP = """Send a prompt to a cluster and stream the answer. The prompt is the argument, a file, or standard input.
Ctrl-C cancels the request.

\b
Examples:
  distkv generate "Once upon a time" --max-tokens 64
  distkv generate --file book.txt --temperature 0 --json
  cat book.txt | distkv generate --address tcp://127.0.0.1:7171
"""


def _command(prompt: str | None, **options: Any) -> int:
    text = _prompt(prompt, options["file"])
    params = SamplingParams(
        max_tokens=options["max_tokens"],
        temperature=options["temperature"],
        top_p=options["top_p"],
        top_k=options["top_k"],
        seed=options["seed"],
        stop=options["stop"],
        stop_token_ids=options["stop_token_id"],
        ignore_eos=options["ignore_eos"],
    )
    with signals_interrupt(), Client(options["address"]) as client:
        if options["json"]:
            output = client.submit(text, params, request_id=options["request_id"], timeout_s=options["timeout"])
            click.echo(msgspec.json.format(msgspec.json.encode(output), indent=2).decode())
        else:
            _stream(client, text, params, options)
    return 0


def _stream(client: Client, prompt: str, params: SamplingParams, options: dict[str, Any]) -> None:
    started_s, first_s, tokens, last_text, finish_reason = time.monotonic(), 0.0, 0, "", None
    for chunk in client.stream(prompt, params, request_id=options["request_id"], timeout_s=options["timeout"]):
        first_s = first_s or time.monotonic()
        tokens += len(chunk.token_ids)
        last_text = chunk.text or last_text
        finish_reason = chunk.finish_reason
        click.echo(chunk.text, nl=False)
        sys.stdout.flush()
    if not last_text.endswith("\n"):
        click.echo()
    if sys.stderr.isatty():
        pace = f", {(tokens - 1) / (time.monotonic() - first_s):.1f} tokens/s" if tokens > 1 else ""
        click.secho(
            f"{tokens} tokens, first after {first_s - started_s:.2f} s{pace}, finish reason {finish_reason}",
            err=True,
            dim=True,
        )


def _prompt(argument: str | None, file: Path | None) -> str:
    if argument is not None and file is not None:
        raise click.UsageError("a prompt and --file are both given; give one of them")
    if argument is not None and argument != "-":
        return argument
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        if sys.stdin.isatty() and argument is None:
            raise click.UsageError("there is no prompt; give it as argument, with --file, or on standard input")
        return sys.stdin.buffer.read().decode("utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the prompt is not UTF-8: {error.reason} at byte {error.start}") from None


def address_option() -> click.Option:
    """Where the cluster is."""
    return click.Option(
        ["--address"],
        default=DEFAULT_GMANAGER,
        envvar="DISTKV_ADDRESS",
        show_default=True,
        show_envvar=True,
        help="Address of a gManager or of any instance.",
    )


command = click.Command(
    "generate",
    callback=_command,
    params=[
        click.Argument(["prompt"], required=False),
        click.Option(["--file"], type=click.Path(path_type=Path), help="Read the prompt from a UTF-8 text file."),
        address_option(),
        click.Option(["--max-tokens"], type=int, default=16, show_default=True, help="Most new tokens."),
        click.Option(["--temperature"], type=float, default=1.0, show_default=True, help="0 is greedy."),
        click.Option(["--top-p"], type=float, default=1.0, show_default=True, help="Keep this much probability."),
        click.Option(["--top-k"], type=int, default=0, show_default=True, help="Keep this many tokens; 0 is off."),
        click.Option(["--seed"], type=int, help="Fixes the sampling noise."),
        click.Option(["--stop"], multiple=True, help="End before this text; may be repeated."),
        click.Option(["--stop-token-id"], type=int, multiple=True, help="End at this token; may be repeated."),
        click.Option(["--ignore-eos"], is_flag=True, help="Go on after the model's end token."),
        click.Option(["--timeout"], type=float, help="Seconds the request may wait for memory."),
        click.Option(["--request-id"], help="Name of the request in logs and status."),
        click.Option(["--json"], is_flag=True, help="Print one JSON object when the answer is complete."),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
