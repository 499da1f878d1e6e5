"""What users send about the form of the output: OpenAI's way to say it, and vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_CHOICE_TEXTS = 4096

JsonSchema = dict[str, Any]
ChoiceTexts = Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICE_TEXTS)]


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema with a name for it. strict changes nothing: the output follows the schema."""

    name: str | None = None
    description: str | None = None
    schema: JsonSchema
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """What the output must be: anything, any JSON object, or JSON that is valid by a schema. schema: beside
    json_object, as some servers have it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema: JsonSchema | None = None

    @property
    def json(self) -> JsonSchema:
        """The schema of the JSON that the output must be."""
        if self.json_schema is not None:
            return self.json_schema.schema
        return {"type": "object"} if self.schema is None else self.schema


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the output must be; one of the first five. json: a schema, or its text. disable_fallback and what begins
    with "_" change nothing: there is no other way. The others are refused unless they change nothing."""

    json: str | JsonSchema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: ChoiceTexts | None = None
    grammar: str | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    backend: Any = msgspec.field(name="_backend", default=None)
    backend_was_auto: Any = msgspec.field(name="_backend_was_auto", default=None)
