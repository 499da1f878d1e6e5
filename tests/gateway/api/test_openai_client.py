"""The official client against a real cluster, sync and async, streaming and not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from distkv import LocalCluster
from distkv.errors import context_length_exceeded
from distkv.text.tokenizer import Tokenizer
from distkv.wire.messages.to_rmanager import Submit
from tests.checkpoints import prompt_ids, reference_greedy, reference_logits
from tests.gateway.harness import MODEL, WAIT_S, ends, silence, speak
from tests.token_ids import prompt_of

CLOSE = 1e-3


@pytest.fixture
def cluster(lasting: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster; whatever a test does, all its memory is free afterwards."""
    yield lasting
    assert_all_free(lasting)


def assert_all_free(cluster: LocalCluster) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        status = cluster.status()
        if not status["requests"] and all(
            one["blocks"]["free"] == one["blocks"]["total"] for one in status["instances"]
        ):
            return
        assert time.monotonic() < deadline_s, status
        time.sleep(0.02)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cluster.http_url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def aclient(cluster: LocalCluster) -> AsyncIterator[openai.AsyncOpenAI]:
    limits = httpx.Limits(max_connections=100)
    async with (
        httpx.AsyncClient(limits=limits, timeout=60) as http,
        openai.AsyncOpenAI(
            base_url=cluster.http_url + "/v1", api_key="none", max_retries=0, http_client=http
        ) as client,
    ):
        yield client


def test_a_completion_is_what_transformers_generates(client: openai.OpenAI, checkpoint: Path) -> None:
    tokenizer, prompt = Tokenizer.from_dir(checkpoint), "A request's KV cache"
    assert tokenizer is not None
    expected = tokenizer.decode(reference_greedy(checkpoint, tokenizer.encode(prompt), 8))
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
    assert answer.choices[0].text == expected and answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 8
    stream = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0, stream=True)
    assert "".join(event.choices[0].text for event in stream) == expected


def test_a_chat(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    answer = client.chat.completions.create(**asked, max_completion_tokens=8)
    assert answer.choices[0].message.role == "assistant"
    *events, last = client.chat.completions.create(
        **asked, max_completion_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(event.choices[0].delta.content or "" for event in events) == answer.choices[0].message.content
    assert last.usage == answer.usage and not last.choices


async def test_the_async_client(aclient: openai.AsyncOpenAI) -> None:
    answer = await aclient.completions.create(model=MODEL, prompt="hello", max_tokens=4, temperature=0)
    stream = await aclient.completions.create(model=MODEL, prompt="hello", max_tokens=4, temperature=0, stream=True)
    assert "".join([event.choices[0].text async for event in stream]) == answer.choices[0].text
    assert [model.id async for model in aclient.models.list()] == [MODEL]
    assert (await aclient.models.retrieve(MODEL)).owned_by == "distkv"


def test_logprobs_are_those_of_transformers(client: openai.OpenAI, checkpoint: Path) -> None:
    ids = prompt_ids(12, seed=3)
    answer = client.completions.create(
        model=MODEL, prompt=ids, max_tokens=4, temperature=0, logprobs=3, echo=True,
        extra_body={"return_tokens_as_token_ids": True},
    )  # fmt: skip
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens and found.token_logprobs and found.top_logprobs
    tokens = [int(token.removeprefix("token_id:")) for token in found.tokens]
    assert tokens[:12] == ids and tokens[12:] == reference_greedy(checkpoint, ids, 4)
    wanted = reference_logits(checkpoint, tokens).log_softmax(-1)
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    for place in range(1, len(tokens)):
        row = wanted[place - 1]
        assert found.token_logprobs[place] == pytest.approx(float(row[tokens[place]]), abs=CLOSE)
        best = sorted(found.top_logprobs[place].values(), reverse=True)[:3]
        assert best == pytest.approx(row.topk(3).values.tolist(), abs=CLOSE)


def test_logprobs_in_a_chat(client: openai.OpenAI, checkpoint: Path) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=3, logprobs=True, top_logprobs=2
    )
    found = answer.choices[0].logprobs
    assert found is not None and found.content is not None and len(found.content) == 3
    for token in found.content:
        assert len(token.top_logprobs) == 2 and token.logprob <= token.top_logprobs[0].logprob + CLOSE


def test_scoring_a_prompt(client: openai.OpenAI, checkpoint: Path) -> None:
    ids = prompt_ids(20, seed=5)
    answer = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, logprobs=0, echo=True)
    found = answer.choices[0].logprobs
    assert found is not None and found.token_logprobs is not None and len(found.token_logprobs) == 20
    wanted = reference_logits(checkpoint, ids).log_softmax(-1)
    scored = [float(wanted[place - 1, ids[place]]) for place in range(1, 20)]
    assert found.token_logprobs[1:] == pytest.approx(scored, abs=CLOSE)


def test_seeds(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 12}
    texts = [choice.text for choice in client.completions.create(**asked, n=3, seed=7).choices]
    assert len(set(texts)) == 3
    assert [choice.text for choice in client.completions.create(**asked, n=3, seed=7).choices] == texts
    assert client.completions.create(**asked, seed=8).choices[0].text == texts[1]
    streamed = ["", "", ""]
    for event in client.completions.create(**asked, n=3, seed=7, stream=True):
        streamed[event.choices[0].index] += event.choices[0].text
    assert streamed == texts


def test_stop(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 24, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    stop = text[len(text) // 2 :][:2]
    answer = client.completions.create(**asked, stop=[stop]).choices[0]
    assert answer.text == text[: text.index(stop)] and answer.finish_reason == "stop"


def test_errors(client: openai.OpenAI) -> None:
    patient = client.with_options(max_retries=20)  # while others may join yet, it may come again
    with pytest.raises(openai.BadRequestError) as refused:
        patient.completions.create(model=MODEL, prompt="x", max_tokens=100_000)
    assert refused.value.code == "context_length_exceeded" and "100001" in str(refused.value).replace(",", "")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=[319 + 1000])
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x", temperature=-1, stream=True)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt", prompt="x")
    assert missing.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_memory(cluster: LocalCluster, stream: bool) -> None:
    body = {"prompt": [1] * 400, "max_tokens": 500, "ignore_eos": True, "stream": stream}
    if stream:
        with httpx.stream("POST", cluster.http_url + "/v1/completions", json=body, timeout=60) as answer:
            next(answer.iter_lines())
    else:
        with contextlib.suppress(httpx.ReadTimeout):
            httpx.post(cluster.http_url + "/v1/completions", json=body, timeout=0.2)
    assert_all_free(cluster)


async def test_many_streams_at_once(cluster: LocalCluster, aclient: openai.AsyncOpenAI) -> None:
    async def one(number: int) -> tuple[str, int]:
        stream = await aclient.completions.create(
            model=MODEL, prompt=prompt_ids(8, seed=number % 4), max_tokens=6, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        text, tokens = "", 0
        async for event in stream:
            text += "".join(choice.text for choice in event.choices)
            tokens = event.usage.completion_tokens if event.usage else tokens
        return text, tokens

    found = await asyncio.gather(*(one(number) for number in range(64)))
    assert all(found[number] == found[number % 4] for number in range(64)) and found[0][1] == 6
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as http:
        accept = {"accept": "application/openmetrics-text"}
        text = (await http.get("/metrics", headers=accept)).text
    values = {
        (one.name, one.labels.get("instance_id")): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert values["distkv:request_queue_time_seconds_count", None] >= 64
    assert values["distkv:up", "i0"] == values["distkv:up", "i1"] == 1


def test_an_instance_that_is_killed_in_the_middle(checkpoint: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(checkpoint, 1, 1024, dtype="float32", threads=1))
        url = cluster.http_url + "/v1"
        client = stack.enter_context(openai.OpenAI(base_url=url, api_key="none", max_retries=0))
        asked: dict[str, Any] = {"model": str(checkpoint), "prompt": [1, 2], "max_tokens": 1000}
        stream = client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
        next(stream)
        cluster.instances[0].kill()
        with pytest.raises(openai.APIError, match="i0"):
            for _ in stream:
                pass
        assert httpx.get(cluster.http_url + "/live", timeout=60).status_code == 200
        with pytest.raises(openai.InternalServerError) as unavailable:
            client.completions.create(**asked)
        assert unavailable.value.status_code == 503 and unavailable.value.response.headers["retry-after"] == "1"


async def test_instances_with_a_limit_on_length(start: Callable[..., Any]) -> None:
    """They say it when they refuse, so that users who ask for no number of tokens get what fits."""

    def limited(instance: Any, route: bytes, submit: Submit) -> list[Any]:
        wanted = len(prompt_of(submit)) + submit.params.max_tokens
        if wanted > 64:
            said = context_length_exceeded(64, len(prompt_of(submit)), submit.params.max_tokens)
            return ends("refused", said, needed_tokens=wanted, pool_tokens=64)(instance, route, submit)
        return speak(instance, route, submit)

    gateway = await start(limited)
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        assert answer.usage is not None and answer.usage.total_tokens == 64
        with pytest.raises(openai.BadRequestError, match="This model's maximum context length is 64 tokens") as refused:
            await client.completions.create(model=MODEL, prompt="x", max_tokens=64)
        assert refused.value.code == "context_length_exceeded"


async def test_errors_have_their_classes(start: Callable[..., Any]) -> None:
    gateway = await start(silence, max_concurrent_requests=1, api_key="sesame")
    url = gateway.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
    async with openai.AsyncOpenAI(base_url=url, api_key="sesame", max_retries=0) as client:
        waiting = asyncio.create_task(client.completions.create(model=MODEL, prompt="x"))
        await gateway.fakes.instances[0].wait_for(Submit)
        with pytest.raises(openai.RateLimitError) as full:
            await client.completions.create(model=MODEL, prompt="x")
        assert full.value.response.headers["retry-after"] == "1"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gateway.stop.set()
        await gateway.task
        with pytest.raises(openai.APIConnectionError):
            await client.models.list()


async def test_a_stream_that_breaks_raises(start: Callable[..., Any]) -> None:
    gateway = await start(ends("failed", "lost its memory", "a ", retryable=True))
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
        )
        said = ""
        with pytest.raises(openai.APIError, match="lost its memory") as broken:
            async for event in stream:
                said += event.choices[0].delta.content or ""
        assert said == "a " and broken.value.code == "request_failed"


async def test_the_client_tries_again_when_told_to(start: Callable[..., Any]) -> None:
    failing = ends("failed", "too full", retryable=True)

    def later(instance: Any, route: bytes, submit: Submit) -> list[Any]:
        # The gateway's own tries come first; the official client's second one is served.
        return failing(instance, route, submit) if len(instance.of(Submit)) < 1 else speak(instance, route, submit)

    gateway = await start(later)
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=2) as client:
        assert (await client.completions.create(model=MODEL, prompt="x", max_tokens=1)).choices[0].text == "a "


async def test_the_client_does_not_try_again_what_is_lost_for_good(start: Callable[..., Any]) -> None:
    gateway = await start(ends("failed", "its 60 s ran out"))
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError, match="ran out"):
            await client.completions.create(model=MODEL, prompt="x")
    assert len(gateway.submits()) == 1
