"""The official client's helpers for tools and structured outputs, unmodified."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from distkv.wire.messages.to_rmanager import Submit
from tests.gateway.harness import MODEL, says

Start = Callable[..., Any]
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Weather(BaseModel):
    city: str


def answer(instance: Any, route: bytes, submit: Submit) -> list[Any]:
    """Whatever the request wants."""
    output = submit.params.structured_output
    texts = [CALL] if output is None or output.kind == "grammar" else ['{"city": ', '"Paris"}']
    if output is not None and output.kind == "json_schema" and json.loads(output.text).get("type") == "array":
        texts = ['[{"name": "Weather", "parameters": ', '{"city": "Paris"}}]']
    return says(*texts)(instance, route, submit)


@pytest.fixture
async def client(start: Start, calling: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    gateway = await start(answer, model=calling)
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_parse_gives_an_object(client: openai.AsyncOpenAI) -> None:
    for completions in (client.chat.completions, client.beta.chat.completions):
        found = await completions.parse(**ASKED, response_format=Weather)
        assert found.choices[0].message.parsed == Weather(city="Paris")


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "Weather"}}])
@pytest.mark.parametrize("also", [{}, {"response_format": Weather}])
async def test_parse_gives_the_arguments_of_calls(
    client: openai.AsyncOpenAI, choice: Any, also: dict[str, Any]
) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    found = await client.chat.completions.parse(**ASKED, tools=tools, tool_choice=choice, **also)
    assert found.choices[0].finish_reason == "tool_calls" and found.choices[0].message.content is None
    (call,) = found.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Paris")


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_the_helper_for_streams(client: openai.AsyncOpenAI, choice: Any) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    async with client.chat.completions.stream(**ASKED, tools=tools, tool_choice=choice) as stream:
        kinds = [event.type async for event in stream]
        found = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    (call,) = found.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Paris") and call.id.startswith("call_")
    async with client.chat.completions.stream(**ASKED, response_format=Weather) as stream:
        await stream.until_done()
        assert (await stream.get_final_completion()).choices[0].message.parsed == Weather(city="Paris")
