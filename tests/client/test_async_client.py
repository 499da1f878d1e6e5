from __future__ import annotations

import asyncio

import pytest

from distkv import (
    AsyncClient,
    InvalidParams,
    RequestFailed,
    RequestRefused,
    SamplingParams,
)
from distkv.client.prompts import MAX_OUTPUTS
from distkv.types import TokenLogprobs
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_rmanager import Cancel, Submit
from tests.client.fakes import first_only, nothing
from tests.token_ids import prompt_of

FOUR = SamplingParams(max_tokens=4)
UNUSED = "tcp://127.0.0.1:9"


async def test_a_stream_is_what_the_instance_sent_and_ends_with_the_reason(start_fakes):
    cluster = start_fakes()
    async with AsyncClient(cluster.address) as client:
        chunks = [chunk async for chunk in client.stream("abc", FOUR, request_id="r1")]
    assert [token for chunk in chunks for token in chunk.token_ids] == [0, 1, 2, 3]
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk.request_id for chunk in chunks} == {"r1"}
    assert cluster.instances[0].of(Cancel) == []


async def test_submit_joins_the_chunks(start_fakes):
    cluster = start_fakes()
    async with AsyncClient(cluster.address) as client:
        output = await client.submit([5, 6, 7], FOUR)
    assert (output.token_ids, output.text, output.finish_reason) == ([0, 1, 2, 3], "0 1 2 3 ", "length")
    assert output.prompt_tokens == 3
    assert 0 < output.time_to_first_token_s <= output.latency_s
    (submit,) = cluster.instances[0].of(Submit)
    assert prompt_of(submit) == (5, 6, 7)


async def test_an_instance_is_as_good_an_address_as_the_gmanager(start_fakes):
    cluster = start_fakes()
    async with AsyncClient(cluster.instances[0].address) as client:
        assert (await client.submit("x", FOUR)).text == "0 1 2 3 "


async def test_generate_keeps_the_order_of_the_prompts(start_fakes):
    cluster = start_fakes()
    async with AsyncClient(cluster.address) as client:
        params = [SamplingParams(max_tokens=n) for n in (3, 1, 2)]
        outputs = await client.generate(["a", "b", "c"], params)
    assert [len(output.token_ids) for output in outputs] == [3, 1, 2]


async def test_one_prompt_of_generate_is_a_text_or_token_ids(start_fakes):
    cluster = start_fakes()
    async with AsyncClient(cluster.address) as client:
        for prompts in ("abc", ["abc"], [5, 6, 7], [[5, 6, 7]], (5, 6, 7)):
            (output,) = await client.generate(prompts, FOUR)
            assert output.token_ids == [0, 1, 2, 3]
        for prompts, kind in (({"prompt": "abc"}, "dict"), (None, "NoneType"), (5, "int")):
            with pytest.raises(TypeError, match=rf"a?prompts? .* not {kind}$"):
                await client.generate(prompts, FOUR)
    assert [prompt_of(submit) for submit in cluster.instances[0].of(Submit)] == ["abc"] * 2 + [(5, 6, 7)] * 3


async def test_several_outputs_of_each_prompt(start_fakes):
    cluster = start_fakes()
    async with AsyncClient(cluster.address) as client:
        params = [SamplingParams(max_tokens=3, seed=7), SamplingParams(max_tokens=1)]
        outputs = await client.generate(["a", "b"], params, n=2)
        for wrong in (0, True, 1.0, MAX_OUTPUTS + 1):
            with pytest.raises(InvalidParams, match=r"n: expected an integer in \[1, 1024\]"):
                await client.generate("a", n=wrong)
    assert [len(output.token_ids) for output in outputs] == [3, 3, 1, 1]
    seeds = {(prompt_of(one), one.params.seed) for one in cluster.instances[0].of(Submit)}
    assert seeds == {("a", 7), ("a", 8), ("b", None)}


async def test_the_first_failure_of_generate_cancels_the_others(start_fakes):
    def serve(instance, route, submit):
        if prompt_of(submit) == "bad":
            return [RequestEnded(request_id=submit.request_id, kind="refused", reason="no")]
        return first_only(instance, route, submit)

    cluster = start_fakes(serve)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestRefused, match="no"):
            await client.generate(["good", "bad"], FOUR)
        await cluster.instances[0].wait_for(Cancel)


async def test_cancelling_the_awaiting_task_cancels_the_request(start_fakes):
    cluster = start_fakes(first_only)
    async with AsyncClient(cluster.address) as client:
        task = asyncio.create_task(client.submit("x", FOUR, request_id="mine"))
        await cluster.instances[0].wait_for(Submit)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (cancel,) = await cluster.instances[0].wait_for(Cancel)
    assert cancel.request_id == "mine"


async def test_breaking_out_of_a_stream_cancels_the_request(start_fakes):
    cluster = start_fakes(first_only)
    async with AsyncClient(cluster.address) as client:
        async for _ in client.stream("x", FOUR, request_id="left"):
            break
        (cancel,) = await cluster.instances[0].wait_for(Cancel)
    assert cancel.request_id == "left"


async def test_closing_the_client_cancels_what_runs(start_fakes):
    cluster = start_fakes(first_only)
    client = AsyncClient(cluster.address)
    async with client:
        stream = client.stream("x", FOUR)
        await anext(stream)
    with pytest.raises(RequestFailed, match="closed by this client"):
        await anext(stream)
    await cluster.instances[0].wait_for(Cancel)


async def test_a_long_list_of_prompts_is_sent_by_and_by(start_fakes):
    cluster = start_fakes(nothing)
    async with AsyncClient(cluster.address) as client:
        for wrong in (0, True, 1.5):
            with pytest.raises(InvalidParams, match="at_once"):
                await client.generate(["x"], FOUR, at_once=wrong)
        task = asyncio.create_task(client.generate(["x"] * 3, FOUR, at_once=2))
        await cluster.instances[0].wait_for(Submit, 2)
        await client.status()  # a third one would have come before the answer
        assert len(cluster.instances[0].of(Submit)) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_refusal_says_the_numbers_and_is_not_tried_elsewhere(start_fakes):
    def refuse(instance, route, submit):
        ended = RequestEnded(
            request_id=submit.request_id, kind="refused", reason="", needed_tokens=900, pool_tokens=512
        )
        return [ended]

    cluster = start_fakes(refuse, refuse)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestRefused, match=r"900.*512") as caught:
            await client.submit("x", FOUR)
    assert (caught.value.needed_tokens, caught.value.pool_tokens) == (900, 512)
    assert cluster.instances[1].of(Submit) == []


@pytest.mark.parametrize("prompt", [None, 3, b"bytes", ["a"], [1, "b"], [True], {"a": 1}])
async def test_prompts_of_a_wrong_type(start_fakes, prompt):
    async with AsyncClient(UNUSED) as client:
        with pytest.raises(TypeError, match="prompt"):
            await client.submit(prompt)


@pytest.mark.parametrize("prompt", [[], [-1], [2**31], "\ud800"])
async def test_prompts_of_a_wrong_value(prompt):
    async with AsyncClient(UNUSED) as client:
        with pytest.raises(InvalidParams, match="prompt"):
            await client.submit(prompt)


async def test_wrong_arguments_are_named():
    async with AsyncClient(UNUSED) as client:
        with pytest.raises(TypeError, match="SamplingParams"):
            await client.submit("x", {"max_tokens": 3})
        with pytest.raises(InvalidParams, match=r"max_tokens: expected a number, for only LLM knows .*, got None"):
            await client.submit("x", SamplingParams(max_tokens=None))
        with pytest.raises(InvalidParams, match="timeout_s"):
            await client.submit("x", timeout_s=0)
        with pytest.raises(InvalidParams, match="request_id"):
            await client.submit("x", request_id="")
        with pytest.raises(InvalidParams, match="params"):
            await client.generate(["x", "y"], [FOUR])


async def test_a_request_id_can_run_once_at_a_time(start_fakes):
    cluster = start_fakes(first_only)
    async with AsyncClient(cluster.address) as client:
        stream = client.stream("x", FOUR, request_id="same")
        await anext(stream)
        with pytest.raises(InvalidParams, match="request_id"):
            await client.submit("x", FOUR, request_id="same")
        await stream.aclose()


async def test_a_client_that_is_not_open_says_so():
    with pytest.raises(RuntimeError, match="async with"):
        await AsyncClient(UNUSED).submit("x")


OF_PROMPT = (None, TokenLogprobs(6, -0.5, 1), TokenLogprobs(7, -1.5, 2, ((5, -0.1),)))
OF_OUTPUT = TokenLogprobs(0, -0.25, 1)


async def test_a_client_of_another_event_loop_says_so(start_fakes):
    """Its sockets are not safe to use from another thread."""
    cluster = start_fakes()

    async def use() -> None:
        await client.submit("x", FOUR)

    async with AsyncClient(cluster.address) as client:
        for method in (use, client.members, client.statuses, client.cluster):
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, method())
        assert (await client.submit("x", FOUR)).finish_reason == "length"


def prompt_first(instance, route, submit):
    """The prompt's logprobs in two chunks, then one token."""
    name = submit.request_id
    last = TokenChunk(
        request_id=name, token_ids=(0,), finish_reason="length", prompt_tokens=3, logprobs=(OF_OUTPUT,), queue_s=0.25
    )
    return [
        TokenChunk(request_id=name, prompt_tokens=3, prompt_logprobs=OF_PROMPT[:2]),
        TokenChunk(request_id=name, prompt_tokens=3, prompt_logprobs=OF_PROMPT[2:]),
        last,
    ]


async def test_logprobs_come_as_they_were_sent(start_fakes):
    cluster = start_fakes(prompt_first)
    params = SamplingParams(max_tokens=1, logprobs=1, prompt_logprobs=1)
    async with AsyncClient(cluster.address) as client:
        chunks = [chunk async for chunk in client.stream([5, 6, 7], params)]
        output = await client.submit([5, 6, 7], params)
        silent = await client.submit([5, 6, 7], SamplingParams(max_tokens=1))
    assert [chunk.prompt_logprobs for chunk in chunks] == [list(OF_PROMPT[:2]), list(OF_PROMPT[2:]), None]
    assert [chunk.logprobs for chunk in chunks] == [None, None, [OF_OUTPUT]]
    assert [chunk.queue_s for chunk in chunks] == [None, None, 0.25]
    assert [chunk.prompt_tokens for chunk in chunks] == [3, 3, 3]
    assert (output.prompt_logprobs, output.logprobs) == (list(OF_PROMPT), [OF_OUTPUT])
    assert silent.logprobs is silent.prompt_logprobs is None


async def test_a_request_whose_prompt_was_told_of_is_not_tried_again(start_fakes):
    """Another instance would tell it all once more."""

    def fail(instance, route, submit):
        ended = RequestEnded(request_id=submit.request_id, kind="failed", reason="draining", retryable=True)
        return [prompt_first(instance, route, submit)[0], ended]

    cluster = start_fakes(fail, fail)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="draining"):
            await client.submit([5, 6, 7], SamplingParams(prompt_logprobs=1))
    assert sum(len(instance.of(Submit)) for instance in cluster.instances) == 1
