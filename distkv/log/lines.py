"""Logging: one JSON object per line on standard output, or coloured lines on a terminal.

Every line names its process and instance, and within `about` the request and the message that caused it. What users
wrote and what they got never reaches a line, whatever is handed to a logger: fields that carry text, tokens or keys are
removed, also inside messages.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TextIO, cast, get_args

import msgspec
import structlog

from distkv.errors import ConfigError
from distkv.log.line_limit import LineLimit
from distkv.log.line_writer import LineWriter
from distkv.log.printable import printable, printable_lines
from distkv.log.tracebacks import traceback_text
from distkv.types import LogLevel

LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)

PRIVATE_FIELDS = frozenset(
    {
        "prompt",
        "prompts",
        "prompt_token_ids",
        "text",
        "token",
        "tokens",
        "token_ids",
        "token_id",
        "stop",
        "logit_bias",
        "allowed_token_ids",
        "forbidden_token_ids",
        "bad_words",
        "logprobs",
        "prompt_logprobs",
        "api_key",
        "key",
        "authorization",
        "password",
    }
)
_TRACEBACKS = ("exception", "stack")
EXIT_S = 1.0
"""Lines that nobody reads have so long when the process ends."""
_writer: LineWriter | None = None


def configure(
    process: str,
    instance_id: str | None = None,
    level: str = "info",
    json: bool | None = None,
    stream: TextIO | None = None,
) -> None:
    """Set up logging for this process; again replaces what was there. structlog's loggers and `logging` both obey.

    process: "gmanager", "rmanager", "worker", ... json: None is JSON unless `stream` (standard output) is a terminal.
    Raises ConfigError for an unknown level.
    """
    if level not in LEVELS:
        raise ConfigError("log_level", f"expected one of {', '.join(LEVELS)}, got {level!r}")
    out = stream or sys.stdout
    threshold = logging.getLevelNamesMapping()[level.upper()]
    fixed = {"process": process} | ({"instance_id": instance_id} if instance_id else {})

    def add_process(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in fixed.items():
            event.setdefault(name, value)
        return event

    as_json = not out.isatty() if json is None else json
    global _writer
    writer = _writer = LineWriter(out, _say_left_out)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_process,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.ExceptionRenderer(lambda info: traceback_text(info[1])),
            drop_private,
            escape_names,
            structlog.processors.JSONRenderer(serializer=_to_json)
            if as_json
            # The default formatter prints the local variables of every frame, prompts among them.
            else structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_args: _Lines(writer),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_ToStructlog()], level=max(threshold, logging.WARNING), force=True)


@atexit.register
def flush() -> None:
    """Give lines that wait for a reader EXIT_S: whoever ends the process past its exit handlers calls it before."""
    if _writer is not None:
        _writer.flush(EXIT_S)


@contextlib.contextmanager
def about(request_id: str = "", cause: str = "") -> Iterator[None]:
    """Lines of this task or thread concern this request and follow from this message, until the block ends."""
    facts = {name: value for name, value in (("request_id", request_id), ("cause", cause)) if value}
    with structlog.contextvars.bound_contextvars(**facts):
        yield


def drop_private(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The structlog processor that removes `PRIVATE_FIELDS`, at any depth."""
    return cast(MutableMapping[str, Any], _public(event))


def escape_names(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The structlog processor that makes every text printable, at any depth; tracebacks keep their lines."""
    return {
        name: printable_lines(value) if name in _TRACEBACKS and isinstance(value, str) else _printable(value)
        for name, value in event.items()
    }


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {_printable(name): _printable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value


def _public(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {"type": type(value).__name__, **_public(fields)}
    if isinstance(value, Mapping):
        return {name: _public(item) for name, item in value.items() if str(name).lower() not in PRIVATE_FIELDS}
    if isinstance(value, list | tuple | set | frozenset):
        return [_public(item) for item in value]
    return value


def _say_left_out(num_lines: int) -> None:
    structlog.get_logger().warning("log lines were left out", left_out=num_lines)


def _to_json(event: Any, **_options: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()


class _Lines:
    """What structlog calls a logger: it takes lines that are rendered."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def msg(self, line: str) -> None:
        self._writer.write(line)

    debug = info = warning = warn = error = critical = fatal = exception = log = msg


class _ToStructlog(logging.Handler):
    """Lines of libraries that use `logging`, asyncio and uvicorn above all. Others can cause them: those of one place
    in a library's code are bounded, as `left_out` says."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[tuple[str, int], LineLimit] = {}

    def emit(self, record: logging.LogRecord) -> None:
        limit = self._limits.setdefault((record.pathname, record.lineno), LineLimit())
        left_out = limit.admit(time.monotonic())
        if left_out is None:
            return
        facts = {"logger": record.name} | ({"left_out": left_out} if left_out else {})
        structlog.get_logger(record.name).log(
            record.levelno, record.getMessage(), exc_info=record.exc_info or None, **facts
        )
