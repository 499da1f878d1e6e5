"""Conversations become prompts by the model's Jinja template, as transformers renders it.

Templates come with models, so they run in a sandbox, on plain data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from distkv.errors import ConfigError
from distkv.text.tokenizer_config import read_object

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_END = "CONTINUE_FINAL_MESSAGE_TAG "


class TemplateFailed(Exception):
    """The template refuses this conversation, or cannot be used for it."""


class ChatTemplate:
    """One model's template. source: how it is written. tokens: its special tokens by name, which it may write."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None, origin: str = "template") -> None:
        self.source = source
        self._tokens = dict(tokens or {})
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ConfigError("chat_template", f"{origin} is no Jinja template: {error}") from None

    @classmethod
    def of_model(cls, model_dir: Path, file: str | None = None) -> ChatTemplate | None:
        """The template in `file`, else the model's own, None if it has none. Raises ConfigError."""
        if file is not None:
            return cls(_read(Path(file).expanduser()), _tokens(model_dir), file)
        return cls._own(model_dir, "default", model_dir / "chat_template.jinja")

    @classmethod
    def of_text(cls, model_dir: Path, source: str) -> ChatTemplate:
        """This template with the model's special tokens. Raises ConfigError."""
        return cls(source, _tokens(model_dir))

    @classmethod
    def for_tools(cls, model_dir: Path) -> ChatTemplate | None:
        """The template that the model has for conversations with tools, None if it is no other one. Raises
        ConfigError."""
        return cls._own(model_dir, "tool_use", model_dir / "additional_chat_templates" / "tool_use.jinja")

    @classmethod
    def _own(cls, model_dir: Path, name: str, own: Path) -> ChatTemplate | None:
        """By name, where there are several; a single one is the default. own: a file that wins."""
        if own.exists():
            return cls(_read(own), _tokens(model_dir), str(own))
        found = read_object(model_dir / "chat_template.json").get("chat_template")
        found = found or read_object(model_dir / "tokenizer_config.json").get("chat_template")
        named = {"default": found}
        if isinstance(found, list):
            named = {str(one.get("name")): one.get("template") for one in reversed(found) if isinstance(one, dict)}
        source = named.get(name)
        return cls(source, _tokens(model_dir), f"the template of {model_dir}") if isinstance(source, str) else None

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation. continue_final_message: it ends within the last message, which the model goes
        on with. more: values for the template. Raises TemplateFailed."""
        if continue_final_message:
            messages = [*messages[:-1], messages[-1] | {"content": messages[-1]["content"] + _END}]
        values = self._tokens | {"tools": None, "documents": None} | dict(more or {})
        try:
            text = self._template.render(
                values | {"messages": messages, "add_generation_prompt": add_generation_prompt}
            )
        except jinja2.TemplateError as error:
            raise TemplateFailed(str(error) or type(error).__name__) from None
        except Exception as error:  # whatever plain Python a template runs into
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None
        return _cut(text, messages[-1]["content"]) if continue_final_message else text


def _cut(text: str, marked: str) -> str:
    final, place = marked.removesuffix(_END).strip(), text.rfind(_END.strip())
    if place < 0 or final not in text:
        raise TemplateFailed("the template changes the final message, so it cannot be continued")
    # Where the template trims messages, what came before the mark is trimmed too.
    return text[:place] if text[place:].startswith(_END) else text[:place].rstrip()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("chat_template", f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError("chat_template", f"{file} is no UTF-8 text") from None


def _tokens(model_dir: Path) -> dict[str, str]:
    """Special tokens by name."""
    settings = read_object(model_dir / "special_tokens_map.json") | read_object(model_dir / "tokenizer_config.json")
    return {name: text for name in _SPECIAL if (text := _token_text(settings.get(name)))}


def _token_text(token: Any) -> str:
    """tokenizer_config.json has them as texts or as objects."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as its base declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": _now}
    made.globals.update(functions)
    return made


def _to_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
