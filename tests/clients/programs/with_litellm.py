"""What litellm gets: python with_litellm.py URL TOKENIZER.json"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Literal

import litellm
import pydantic

FACT, QUESTION = "The keeper of the old mill is Greta Holm.", "What is the keeper of the old mill?"
PROMPT = f"{FACT}\nQuestion: {QUESTION}\nAnswer:"
MESSAGES = [{"role": "user", "content": f"{FACT}\n{QUESTION}"}]


class Keeper(pydantic.BaseModel):
    keeper: Literal["Greta Holm", "nobody"]


def found(url: str, tokenizer: Path) -> dict[str, Any]:
    providers = [
        {"model": "hosted_vllm/demo", "api_base": f"{url}/v1"},
        {"model": "openai/demo", "api_base": f"{url}/v1", "api_key": "none"},
    ]
    custom = litellm.create_tokenizer(tokenizer.read_text(encoding="utf-8"))
    plain = litellm.text_completion(
        model="text-completion-openai/demo", api_base=f"{url}/v1", api_key="none", prompt=PROMPT, temperature=0
    )
    return {
        "chats": [chat(provider) for provider in providers],
        "plain": plain.choices[0].text,
        "prompt_tokens": plain.usage.prompt_tokens,
        "counted": litellm.token_counter(custom_tokenizer=custom, text=PROMPT),
    }


def chat(provider: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {**provider, "messages": MESSAGES, "temperature": 0, "max_tokens": 16}
    whole = litellm.completion(**asked)
    events = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(events, messages=MESSAGES)
    later = asyncio.run(litellm.acompletion(**asked, n=2))
    shaped = litellm.completion(**asked | {"max_tokens": 256}, response_format=Keeper)
    try:
        litellm.completion(**asked | {"messages": [{"role": "user", "content": PROMPT * 500}]})
        too_long = "nothing"
    except Exception as error:
        too_long = type(error).__name__
    return {
        "text": whole.choices[0].message.content,
        "ended": whole.choices[0].finish_reason,
        "usage": usage_of(whole),
        "streamed": "".join(event.choices[0].delta.content or "" for event in events if event.choices),
        "streamed_usage": usage_of(built),
        "shaped": Keeper.model_validate_json(shaped.choices[0].message.content).keeper,
        "choices": [choice.message.content for choice in later.choices],
        "too_long": too_long,
    }


def usage_of(answer: Any) -> list[int]:
    return [answer.usage.prompt_tokens, answer.usage.completion_tokens]


if __name__ == "__main__":
    print(json.dumps(found(sys.argv[1], Path(sys.argv[2]))))
