"""What langchain gets: python with_langchain.py URL"""

import asyncio
import json
import operator
import sys
from functools import reduce
from typing import Any, Literal

import pydantic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

FACT, QUESTION = "The access code of the gate is 48213.", "What is the access code of the gate?"
PROMPTS = [f"{FACT}\n{QUESTION}", "The keeper of the old mill is Greta Holm.\nWhat is the keeper of the old mill?"]


class Code(pydantic.BaseModel, extra="forbid"):
    """The access code of a place."""

    code: Literal["48213", "77120"]


@tool
def look_up(place: Literal["the gate", "the mill"]) -> str:
    """The access code of a place."""
    raise AssertionError("nobody runs it")


def found(url: str) -> dict[str, Any]:
    to_server: dict[str, Any] = {"model": "demo", "base_url": f"{url}/v1", "api_key": "none", "temperature": 0}
    chat = ChatOpenAI(**to_server, max_tokens=256, max_retries=0)
    shapes = [chat.with_structured_output(Code, method=method) for method in ("json_schema", "function_calling")]
    called = chat.bind_tools([look_up], tool_choice="look_up", strict=True).invoke(PROMPTS[0])
    history = [
        HumanMessage(QUESTION),
        AIMessage("", tool_calls=[{"name": "look_up", "args": {"place": "the gate"}, "id": "call-1"}]),
        ToolMessage(FACT, tool_call_id="call-1"),
        HumanMessage(QUESTION),
    ]
    whole = chat.invoke(PROMPTS[0])
    streamed = reduce(operator.add, chat.stream(PROMPTS[0], stream_usage=True))
    with_logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(PROMPTS[0])
    try:
        chat.invoke(PROMPTS[0] * 1000)
        too_long = ["nothing"]
    except Exception as error:
        too_long = [kind.__name__ for kind in type(error).__mro__]
    return {
        "text": whole.content,
        "usage": whole.usage_metadata,
        "streamed": streamed.content,
        "streamed_usage": streamed.usage_metadata,
        "batch": [one.content for one in chat.batch(PROMPTS)],
        "async": asyncio.run(chat.ainvoke(PROMPTS[0])).content,
        "after_tools": chat.bind_tools([look_up], tool_choice="none").invoke(history).content,
        "logprobs": [one["logprob"] for one in with_logprobs.response_metadata["logprobs"]["content"]],
        "shaped": [shape.invoke(PROMPTS[0]).code for shape in shapes],
        "called": [[call["name"], call["args"]] for call in called.tool_calls],
        "too_long": too_long,
        "completion": OpenAI(**to_server).invoke(f"{FACT}\nQuestion: {QUESTION}\nAnswer:"),
    }


if __name__ == "__main__":
    print(json.dumps(found(sys.argv[1])))
