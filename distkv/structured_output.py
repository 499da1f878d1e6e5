"""What the text of an output must be, as a plain value that users and every package share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from distkv.errors import InvalidParams

StructuredKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]

FIELD = "structured_output"
MAX_BYTES = 65536


class StructuredOutput(msgspec.Struct, frozen=True):
    """What the text of an output must be: a token that cannot go on to such a text is not chosen. Raises InvalidParams.

    Whether `text` is a schema, a regex or a grammar that can be followed is not looked at here, for that takes up to a
    quarter of a second: `distkv.text.structured_output.check` does it.
    """

    kind: StructuredKind  #: `json_object` is any JSON object
    #: by kind a JSON schema, a regex that all of the output matches, the JSON list of the texts that the output is one
    #: of, a grammar in llguidance's Lark or llama.cpp's GBNF; empty for `json_object`; at most 65,536 bytes
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(StructuredKind):
            raise InvalidParams(FIELD, f"one of {', '.join(get_args(StructuredKind))}", self.kind)
        if self.kind == "json_object":
            if self.text != "":
                raise InvalidParams(FIELD, "no text with json_object", self.text)
        elif not self.text or not _has_at_most(MAX_BYTES, self.text):
            raise InvalidParams(FIELD, f"a {self.kind} of 1 to {MAX_BYTES} bytes", self.text)

    @classmethod
    def json_object(cls) -> StructuredOutput:
        """Any JSON object."""
        return cls("json_object")

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any]) -> StructuredOutput:
        """JSON that is valid by this schema."""
        return cls("json_schema", schema if isinstance(schema, str) else _json(schema))

    @classmethod
    def regex(cls, pattern: str) -> StructuredOutput:
        """A text that this regex matches from beginning to end."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> StructuredOutput:
        """One of these texts."""
        return cls("choice", _json(texts))

    @classmethod
    def grammar(cls, grammar: str) -> StructuredOutput:
        """A text of this grammar, in llguidance's Lark or llama.cpp's GBNF."""
        return cls("grammar", grammar)


def _has_at_most(most_bytes: int, text: object) -> bool:
    """Whether this is a text of so many bytes that UTF-8 can encode."""
    # The number of characters first: it costs nothing, whatever came.
    if not isinstance(text, str) or len(text) > most_bytes:
        return False
    try:
        return len(text.encode()) <= most_bytes
    except UnicodeEncodeError:
        return False


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidParams(FIELD, "what can be written as JSON", value) from None
