"""How commands end: one sentence and a hint on standard error, never a traceback.

Exit codes: 0 done; 2 the command line, configuration or parameters are wrong; 130 interrupted, or what a shell makes of
one that Ctrl-C ends before there is anything to clean up; 1 anything else.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from distkv.errors import (
    CheckpointError,
    ClusterUnreachable,
    ConfigError,
    DistKVError,
    InvalidParams,
    RequestFailed,
    RequestUnknown,
    StartupFailed,
)
from distkv.log.printable import printable_lines


def run(command: click.Command, args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Missing standard streams are made before, and what cannot be written to
    them afterwards is dropped, so that neither changes how the process ends."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal does not have is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code = _run(command, args)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a full disk, or a reader that is gone; it must not fail again at exit
            _replace(stream.fileno())
    return code


def _run(command: click.Command, args: Sequence[str] | None) -> int:
    try:
        code = command.main(args=args, prog_name=command.name, standalone_mode=False)
    except click.exceptions.Exit as exited:
        return exited.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else command.name
        return _report(" ".join(error.format_message().split()), f"see '{path} --help'", 2)
    except click.ClickException as error:
        return _report(error.format_message(), "", error.exit_code)
    except (ConfigError, InvalidParams) as error:
        return _report(str(error), "", 2)
    except DistKVError as error:
        is_config = isinstance(error, StartupFailed) and error.exit_code == 2  # the process that ended says so
        return _report(str(error), _hint(error), 2 if is_config else 1)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:  # the reader of our output is gone
        return 1
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # also of standard output, which has no name
            return _report(f"{error.filename or 'what this writes'}: {error.strerror}", "", 1)
        if error.filename is None:
            return _unforeseen(error)
        return _report(f"{error.filename}: {error.strerror}", "", 1)
    except Exception as error:
        return _unforeseen(error)
    return code if isinstance(code, int) else 0


def _open_standard_streams() -> None:
    """Who starts us may have closed some of them; then no socket may get their numbers, which children inherit."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            _replace(number)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _replace(number: int) -> None:
    """What is written to this descriptor, or read from it, is nothing from now on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _unforeseen(error: Exception) -> int:
    if os.environ.get("DISTKV_LOG_LEVEL") == "debug":
        traceback.print_exception(error)
    reason = str(error) or "no message"
    return _report(f"{type(error).__name__}: {reason}", "DISTKV_LOG_LEVEL=debug shows where it happened", 1)


def _hint(error: DistKVError) -> str:
    match error:
        case ClusterUnreachable():
            # Only a mistake has to wait for it to be loaded.
            from distkv.wire.reachability import HTTP_ANSWERS, problem_at

            problem = problem_at(error.address)
            if problem == HTTP_ANSWERS:
                return f"{problem}; give the address of a gManager or an instance, which begins tcp://"
            otherwise = (
                "start one with 'distkv up', or name another with --address; while a gManager is away, the address of "
                "any instance works too: --address tcp://HOST:PORT"
            )
            return f"{problem}; {otherwise}" if problem else otherwise
        case RequestUnknown():
            return "give the whole id: the beginning of one finds only requests that have not ended"
        case CheckpointError():
            return "--model takes a local directory with config.json, *.safetensors and a tokenizer, or demo"
        case RequestFailed(retryable=True):
            return "send the request again"
        case _:
            return ""


def _report(sentence: str, hint: str, code: int) -> int:
    click.echo(f"error: {printable_lines(sentence.strip())}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code
