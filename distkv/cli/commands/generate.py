"""`distkv generate`: one prompt, streamed to the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec

from distkv.cli.options import address_option
from distkv.cli.param_types import CountType, LogitBiasType
from distkv.cli.signals import signals_interrupt
from distkv.cli.structured_flags import structured_flags, structured_output
from distkv.client.blocking import Client
from distkv.types import RequestOutput, SamplingParams, TokenLogprobs

MOST_ANSWERS = 128
MADE = ("logit_bias", "allowed_token_ids", "structured_output")
"""Parameters that are not just what the command line says."""
HELP = """Send a prompt to a cluster and stream the answer. The prompt is the argument, a file, or standard input; - is
standard input too. Ctrl-C cancels the request.

With -n the answers come together, each once it is complete; with --seed, answer i has the seed plus i.

\b
Examples:
  distkv generate "The gate code is 48213. Question: What is the gate code? Answer:" --temperature 0
  distkv generate --file book.txt --temperature 0 --max-tokens 4K --json
  cat book.txt | distkv generate --address tcp://127.0.0.1:7171
  distkv generate "Is 7 a prime? Answer:" --choice yes --choice no --temperature 0
  distkv generate "Heads or tails?" -n 3 --seed 1 --min-p 0.05 --logit-bias 42=-100
"""


def _command(prompt: str | None, **options: Any) -> int:
    if options["logprobs"] is not None and not options["json"]:
        raise click.UsageError("--logprobs are shown with --json only")
    text = _prompt(prompt, options["file"])
    params = SamplingParams(
        stop_token_ids=options["stop_token_id"],
        logit_bias=dict(options["logit_bias"]),
        allowed_token_ids=options["allowed_token_ids"] or None,
        structured_output=structured_output(options),
        **{name: options[name] for name in SamplingParams.__struct_fields__ if name in options and name not in MADE},
    )
    count = options["n"]
    with signals_interrupt():
        if count == 1 and not options["json"]:
            with Client(options["address"]) as client:
                _stream(client, text, params, options)
            return 0
        outputs = _answers(text, params, options)
        if options["json"]:
            shown = [_as_json(output) for output in outputs]
            click.echo(msgspec.json.format(msgspec.json.encode(shown[0] if count == 1 else shown), indent=2).decode())
            return 0
        for index, output in enumerate(outputs, 1):
            click.secho(f"--- answer {index} of {count} ---", dim=True)
            click.echo(output.text, nl=not output.text.endswith("\n"))
            sys.stdout.flush()
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
        since_first_s = time.monotonic() - first_s
        pace = f", {(tokens - 1) / since_first_s:.1f} tokens/s" if tokens > 1 and since_first_s else ""
        click.secho(
            f"{tokens} tokens, first after {first_s - started_s:.2f} s{pace}, finish reason {finish_reason}",
            err=True,
            dim=True,
        )


def _answers(prompt: str, params: SamplingParams, options: dict[str, Any]) -> Iterator[RequestOutput]:
    """The whole answers, served at the same time, in their order."""
    count, name = options["n"], options["request_id"]

    def submit(index: int) -> RequestOutput:
        own_name = name if name is None or count == 1 else f"{name}-{index}"
        return client.submit(prompt, params.of_choice(index), request_id=own_name, timeout_s=options["timeout"])

    # The client is closed first: that cancels what the threads still wait for.
    with ThreadPoolExecutor(count) as threads, Client(options["address"]) as client:
        yield from threads.map(submit, range(count))


def _as_json(output: RequestOutput) -> dict[str, Any]:
    shown = {name: getattr(output, name) for name in output.__struct_fields__ if name != "prompt_logprobs"}
    if output.logprobs is None:
        del shown["logprobs"]
    else:
        shown["logprobs"] = [
            {name: getattr(one, name) for name in TokenLogprobs.__struct_fields__} for one in output.logprobs
        ]
    return shown


def _prompt(argument: str | None, file: Path | None) -> str:
    if argument is not None and file is not None:
        raise click.UsageError("a prompt and --file are both given; give one of them")
    if argument is not None and argument != "-":
        return argument
    path = None if file is None or str(file) == "-" else file
    source = "standard input" if path is None else str(path)
    try:
        if argument is None and file is None and sys.stdin.isatty():
            raise click.UsageError("there is no prompt; give it as argument, with --file, or on standard input")
        content = sys.stdin.buffer.read() if path is None else path.read_bytes()
        if not content:
            raise click.UsageError(f"{source} is empty; there is no prompt")
        return content.decode("utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot read {source}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _number(flag: str, default: float, help: str) -> click.Option:
    return click.Option([flag], type=type(default), default=default, show_default=True, help=help)


command = click.Command(
    "generate",
    callback=_command,
    params=[
        click.Argument(["prompt"], required=False),
        click.Option(["--file"], type=click.Path(path_type=Path), help="Read the prompt from a UTF-8 text file."),
        address_option(),
        click.Option(
            ["--max-tokens"],
            type=CountType(),
            default=16,
            show_default=True,
            metavar="NUMBER",
            help="Most new tokens, such as 256 or 4K.",
        ),
        _number("--temperature", 1.0, "0 is greedy."),
        _number("--top-p", 1.0, "Keep this much probability."),
        _number("--top-k", 0, "Keep this many tokens; 0 is off."),
        _number("--min-p", 0.0, "Keep tokens with this share of the most likely one's probability; 0 is off."),
        _number("--repetition-penalty", 1.0, "Above 1, what was there before is less likely; 1 is off."),
        _number("--presence-penalty", 0.0, "Taken off the logits of tokens that the answer has."),
        _number("--frequency-penalty", 0.0, "The same, as often as the answer has them."),
        click.Option(
            ["--logit-bias"],
            type=LogitBiasType(),
            multiple=True,
            metavar="ID=BIAS",
            help="Add this to the logit of a token, -100 to 100; may be repeated.",
        ),
        click.Option(["--seed"], type=int, help="Fixes the sampling noise."),
        click.Option(["--stop"], multiple=True, help="End before this text; may be repeated."),
        click.Option(["--stop-token-id"], type=int, multiple=True, help="End at this token; may be repeated."),
        click.Option(["--include-stop-str-in-output"], is_flag=True, help="End after what ends the answer."),
        click.Option(
            ["--skip-special-tokens/--no-skip-special-tokens"],
            default=True,
            show_default=True,
            help="Leave special tokens out of the text.",
        ),
        click.Option(
            ["--min-tokens"], type=int, default=0, show_default=True, help="End after so many at the earliest."
        ),
        click.Option(["--bad-word", "bad_words"], multiple=True, help="Never say this; may be repeated."),
        click.Option(
            ["--allowed-token-id", "allowed_token_ids"],
            type=int,
            multiple=True,
            help="Choose no other tokens; may be repeated.",
        ),
        *structured_flags(),
        click.Option(["--ignore-eos"], is_flag=True, help="Go on after the model's end token."),
        click.Option(
            ["-n", "--n"],
            type=click.IntRange(1, MOST_ANSWERS),
            default=1,
            show_default=True,
            help="How many answers.",
        ),
        click.Option(
            ["--logprobs"],
            type=int,
            help="With --json: the logprob of each token, and of this many most likely ones.",
        ),
        click.Option(["--timeout"], type=float, help="Seconds the request may take in all, waiting included."),
        click.Option(["--request-id"], help="Name of the request in logs and status."),
        click.Option(
            ["--json"], is_flag=True, help="Print one JSON object when the answer is complete; with -n, a list of them."
        ),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
