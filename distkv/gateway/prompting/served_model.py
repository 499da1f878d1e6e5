"""The model as the gateway needs it: its names, tokenizer, chat template and sampling defaults, but no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distkv.config import GatewayConfig, model_dir
from distkv.gateway.generation.sampling import model_defaults
from distkv.gateway.schema.errors import ApiError, invalid
from distkv.text.chat_template import ChatTemplate
from distkv.text.tokenizer import Tokenizer
from distkv.text.tokenizer_config import tokenizer_info
from distkv.text.tokenizer_conversion import convert_tokenizer
from distkv.text.tool_calls.formats import FORMATS, detected


@dataclass(frozen=True)
class ServedModel:
    """names: what users may call it; the first one is what answers say. tokenizer_info: what clients need to write
    prompts themselves. tokenizer, template: None if it has none. tool_template: of conversations with tools, None if
    it has no other one for them. tool_format: in which it writes tool calls, None if that is none that is known.
    defaults: of sampling, by field of SamplingParams.
    """

    names: tuple[str, ...]
    tokenizer_info: Mapping[str, Any]
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    tool_template: ChatTemplate | None
    tool_format: str | None
    defaults: Mapping[str, Any]

    @classmethod
    def load(cls, config: GatewayConfig) -> ServedModel:
        """Read the files of `config.model`; blocks. Raises ConfigError, CheckpointError."""
        path = model_dir(config.model)
        names = config.served_model_name or (config.model,)
        template = ChatTemplate.of_model(path, config.chat_template)
        tool_template = ChatTemplate.for_tools(path) if config.chat_template is None else None
        shown = tool_template or template
        parsers = {"auto": detected(shown.source) if shown is not None else None, "none": None}
        return cls(
            names=names,
            tokenizer_info=tokenizer_info(path, None if template is None else template.source),
            tokenizer=Tokenizer.from_dir(path, convert_tokenizer),
            template=template,
            tool_template=tool_template,
            tool_format=parsers.get(config.tool_call_parser, config.tool_call_parser),
            defaults=model_defaults(path) if config.generation_config == "auto" else {},
        )

    @property
    def vocabulary(self) -> str:
        """As `Member` has it; blocks for a moment."""
        return "" if self.tokenizer is None else self.tokenizer.vocabulary

    def check_name(self, name: str | None) -> None:
        """Raise ApiError 404 unless the model is called so; no name is this one's."""
        if name is not None and name not in self.names:
            known = ", ".join(self.names)
            raise ApiError(
                404, f"the model {name!r} does not exist; served here: {known}", param="model", code="model_not_found"
            )

    @property
    def marks_are_special(self) -> bool:
        """Whether tool calls are marked by special tokens, which must not be left out of the text then."""
        marks = FORMATS[self.tool_format].marks if self.tool_format is not None else ()
        return any(self.special_id(mark) is not None for mark in marks)

    def special_id(self, text: str) -> int | None:
        """The special token that is this text, if there is one."""
        return None if self.tokenizer is None else self.tokenizer.special_id(text)

    def need_tokenizer(self, param: str | None = None) -> Tokenizer:
        """The tokenizer. Raises ApiError 400 if the model has none."""
        if self.tokenizer is None:
            raise invalid("the model has no tokenizer: give the prompt as token ids", param)
        return self.tokenizer
