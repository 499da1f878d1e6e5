"""What the official client gets: python with_openai.py URL"""

import asyncio
import json
import sys
from typing import Any

import openai
import pydantic

FACT, QUESTION = "The access code of the gate is 48213.", "What is the access code of the gate?"
PROMPT = f"{FACT}\nQuestion: {QUESTION}\nAnswer:"
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": f"{FACT}\n{QUESTION}"}],
    "temperature": 0,
    "max_completion_tokens": 16,
}


class Code(pydantic.BaseModel):
    code: str = pydantic.Field(pattern="^[0-9]{5}$")


def found(url: str) -> dict[str, Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return {**completions(client), **chats(client), **others(client), "async": asyncio.run(asynchronous(url))}


def completions(client: openai.OpenAI) -> dict[str, Any]:
    sampled: dict[str, Any] = {"model": "demo", "prompt": "The", "max_tokens": 8, "seed": 7, "n": 3}
    whole = client.completions.create(**sampled)
    texts = ["", "", ""]
    for event in client.completions.create(**sampled, stream=True):
        texts[event.choices[0].index] += event.choices[0].text
    scored = client.completions.create(model="demo", prompt=PROMPT, max_tokens=0, echo=True, logprobs=2)
    return {
        "sampled": [choice.text for choice in whole.choices],
        "sampled_streamed": texts,
        "sampled_tokens": whole.usage and whole.usage.completion_tokens,
        "scored": scored.choices[0].logprobs and scored.choices[0].logprobs.token_logprobs,
    }


def chats(client: openai.OpenAI) -> dict[str, Any]:
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    *events, last = client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    parsed = client.chat.completions.parse(**CHAT | {"max_completion_tokens": 256}, response_format=Code)
    logprobs = answer.choices[0].logprobs
    assert answer.usage is not None and last.usage is not None and logprobs is not None
    return {
        "chat": answer.choices[0].message.content,
        "chat_ended": answer.choices[0].finish_reason,
        "chat_usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
        "chat_logprobs": [[one.token, one.logprob, len(one.top_logprobs)] for one in logprobs.content or []],
        "chat_parsed": parsed.choices[0].message.parsed and parsed.choices[0].message.parsed.code,
        "chat_streamed": "".join(event.choices[0].delta.content or "" for event in events),
        "chat_streamed_usage": [last.usage.prompt_tokens, last.usage.completion_tokens],
    }


def others(client: openai.OpenAI) -> dict[str, Any]:
    errors: dict[str, Any] = {}
    client = client.with_options(max_retries=20)  # what is too long may come again in a cluster's first seconds
    wrong: dict[str, dict[str, Any]] = {
        "too long": CHAT | {"messages": [{"role": "user", "content": "A long story. " * 5000}]},
        "no such model": CHAT | {"model": "gpt"},
        "no such temperature": CHAT | {"temperature": -1},
    }
    for name, body in wrong.items():
        try:
            client.chat.completions.create(**body)
        except openai.APIStatusError as error:
            errors[name] = [type(error).__name__, error.code, error.param]
    return {"models": [model.id for model in client.models.list()], "errors": errors}


async def asynchronous(url: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(**CHAT)
        stream = await client.chat.completions.create(**CHAT, stream=True)
        streamed = [event.choices[0].delta.content or "" async for event in stream]
        return [whole.choices[0].message.content or "", "".join(streamed)]


if __name__ == "__main__":
    print(json.dumps(found(sys.argv[1])))
