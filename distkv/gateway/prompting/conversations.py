"""Messages of a chat, on their way to a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.requests import Message
from distkv.gateway.schema.tools import Tool, ToolCall
from distkv.text.chat_template import TemplateFailed

REASONING = ("reasoning", "reasoning_content", "thinking")
"""Templates know it by any of these names."""


class Conversation(Protocol):
    """The fields that say how messages become a prompt."""

    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def tools(self) -> list[Tool] | list[dict[str, Any]] | None: ...


def conversation_text(model: ServedModel, messages: Sequence[Message], how: Conversation) -> str:
    """The prompt of a conversation. Templates write their own special tokens. Raises ApiError 400."""
    model.need_tokenizer("messages")
    template = (how.tools and model.tool_template) or model.template
    if template is None:
        raise invalid("the model has no chat template; --chat-template of the gateway gives it one", "messages")
    goes_on = bool(how.continue_final_message)
    opens = not goes_on if how.add_generation_prompt is None else how.add_generation_prompt
    if goes_on and opens:
        raise invalid("continue_final_message: cannot go with add_generation_prompt", "continue_final_message")
    plain = [_plain(number, message) for number, message in enumerate(messages)]
    _name_answers(plain)
    if goes_on and not plain[-1].get("content"):
        raise invalid("continue_final_message: the last message has no content", "continue_final_message")
    more: Mapping[str, Any] = {"tools": list(map(_plain_tool, how.tools or ())) or None} | (
        how.chat_template_kwargs or {}
    )

    mends = iter((_leave_out_unfinished, _leave_out_reasoning))
    while True:
        try:
            return template.render(plain, add_generation_prompt=opens, continue_final_message=goes_on, more=more)
        except TemplateFailed as error:
            if not any(mend(plain) for mend in mends):
                raise invalid(f"messages: the chat template does not take them: {error}", "messages") from None


def _plain(number: int, message: Message) -> dict[str, Any]:
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    plain: dict[str, Any] = {"role": message.role, "content": content or ""}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = [
            _plain_call(call, f"messages[{number}].tool_calls[{place}]")
            for place, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning if isinstance(message.reasoning, str) else message.reasoning_content
    if reasoning is not None:
        plain |= dict.fromkeys(REASONING, reasoning)
    return plain


def _name_answers(messages: list[dict[str, Any]]) -> None:
    """Give what tools answered the name of its function: clients send only the id of the call, and some templates want
    the name."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call.get("id", "")] = call["function"]["name"]
        if message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]


def _leave_out_unfinished(messages: list[dict[str, Any]]) -> bool:
    """Whether there were arguments that are no object, which some templates cannot write; they are empty now."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    unfinished = [function for function in calls if isinstance(function["arguments"], str)]
    for function in unfinished:
        function["arguments"] = {}
    return bool(unfinished)


def _leave_out_reasoning(messages: list[dict[str, Any]]) -> bool:
    """Whether there was some in messages that have text and calls too; gpt-oss's template takes two of these."""
    all_three = [one for one in messages if one["content"] and "tool_calls" in one and REASONING[0] in one]
    for message in all_three:
        for name in REASONING:
            del message[name]
    return bool(all_three)


def _plain_tool(tool: Tool | dict[str, Any]) -> dict[str, Any]:
    """Without what only says how calls are made."""
    if isinstance(tool, dict):
        return tool
    function = msgspec.structs.replace(tool.function, strict=None)
    return {"type": tool.type, "function": msgspec.to_builtins(function)}


def _plain_call(call: ToolCall, param: str) -> dict[str, Any]:
    """Its arguments are an object, which templates write as they want; their text where they are no JSON, as those of a
    call that was cut off: a conversation goes on with it."""
    arguments = call.function.arguments or {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments, type=dict[str, Any])
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise invalid(f"{param}.function.arguments: is no JSON object: {error}", param) from None
        except msgspec.DecodeError:
            pass
    plain: dict[str, Any] = {"type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
    if call.id is not None:
        plain["id"] = call.id
    return plain
