"""Outputs that follow a grammar through real clusters, whose random model would produce noise without it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator

import psutil
import pytest

from distkv import RequestRefused, SamplingParams, StructuredOutput
from distkv.client.local.cluster import InstanceHandle
from distkv.text.structured_output import Vocabulary, compiled
from distkv.text.tokenizer import Tokenizer
from distkv.wire.messages.to_worker import Sampling
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving
from tests.conftest import LASTING
from tests.engine.harness import Engine, seq_step

pytest.importorskip("llguidance", reason="llguidance is not installed in this environment: pip install -e .")

LONG = StructuredOutput.regex(r"([a-z]{3,7} ){40,60}[0-9]{2}\.")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def what_checks_grammars_lasts() -> Iterator[None]:
    """As long as the instance that it checks them for."""
    yield
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "distkv.text.grammar_checker" in process.cmdline() and process.ppid() != os.getpid():
                LASTING.add(process.pid)


def alone(checkpoint, prompt: list[int], output: StructuredOutput, count: int) -> list[int]:
    """What one worker generates that holds all of it."""
    engine = Engine(checkpoint, num_slots=512)
    tokenizer = Tokenizer.from_dir(checkpoint)
    assert tokenizer is not None
    vocabulary = Vocabulary(tokenizer, engine.model.config.vocab_size)
    engine.runner.constraints.add(1, compiled(output, vocabulary))
    sampling = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, prompt_tokens=len(prompt), grammar_id=1)
    table, tokens = engine.table(len(prompt) + count), []
    while len(tokens) < count:
        end = len(prompt) + len(tokens)
        (result,) = engine.run(seq_step(prompt, end - 1 if tokens else 0, end, table, sample=sampling))
        tokens.append(result.token)
        if result.complete:
            break
    return tokens


@pytest.mark.slow
async def test_a_creditor_dies_and_the_output_is_the_same(four, checkpoint):
    """Steps run ahead of their tokens, and those that a loss voids have moved the matcher on."""
    prompt = prompt_ids(1200, seed=3)
    expected = alone(checkpoint, prompt, LONG, 400)
    async with driving(four) as driver:
        run = await driver.start(prompt, 400, at="i0", structured_output=LONG)
        await run.reached(20)
        victim = await driver.creditor(run)
        InstanceHandle.kill(driver.instance(victim))
        assert await run.finished() == expected
        assert run.finish_reason == "stop" and re.fullmatch(LONG.text, run.text)
        await driver.settled()


async def test_requests_that_preempt_each_other_have_the_outputs_that_they_have_alone(start):
    cluster = start(1, 256)
    output = StructuredOutput.regex("([a-z]{3,7} ){12,18}[0-9]{2}[.]")
    prompts = [prompt_ids(20, seed=index) for index in range(8)]
    params = SamplingParams(max_tokens=200, temperature=0.8, seed=5, structured_output=output)
    # Short ones first, so that the instance expects the others to be as short and takes in too many of them.
    cluster.generate(prompts * 4, SamplingParams(max_tokens=1))
    together = cluster.generate(prompts, params)
    async with driving(cluster) as driver:
        assert (await driver.statuses())["i0"].instance.counters.preemptions > 0
    one_by_one = [cluster.generate([prompt], params)[0] for prompt in prompts]
    assert [out.token_ids for out in together] == [out.token_ids for out in one_by_one]
    assert all(out.finish_reason == "stop" and re.fullmatch(output.text, out.text) for out in together)


def test_outputs_fit_whatever_else_the_request_says(three):
    output = StructuredOutput.json_schema(SCHEMA)
    params = SamplingParams(max_tokens=200, temperature=1.0, seed=1, structured_output=output, logprobs=2)
    outs = three.generate([[1, 2, 3]], params, n=4)
    for out in outs:
        value = json.loads(out.text)
        assert set(value) == {"name", "ok"} and len(value["name"]) <= 9 and isinstance(value["ok"], bool)
        assert out.finish_reason == "stop" and len(out.logprobs) == len(out.token_ids)
    assert len({out.text for out in outs}) > 1
    choice = StructuredOutput.choice(["alpha", "beta"])
    for more in ({"ignore_eos": True}, {"min_tokens": 50}, {"repetition_penalty": 1.4}, {"top_k": 3}):
        (out,) = three.generate([[5, 6]], SamplingParams(max_tokens=60, structured_output=choice, **more))
        assert out.text in ("alpha", "beta") and out.finish_reason == "stop"
    (cut,) = three.generate([[5, 6]], SamplingParams(max_tokens=1, structured_output=LONG))
    assert cut.finish_reason == "length"
    (stopped,) = three.generate([[5, 6]], SamplingParams(max_tokens=90, structured_output=LONG, stop=" "))
    assert re.fullmatch("[a-z]{3,7}", stopped.text) and stopped.finish_reason == "stop"


async def test_one_that_cannot_be_followed_is_refused_alone(three):
    async with driving(three) as driver:
        other = await driver.start(prompt_ids(30, seed=1), 100, ignore_eos=True)
        for output, words in (
            (StructuredOutput.regex("(a"), "unclosed group"),
            (
                StructuredOutput.json_schema(
                    {"allOf": [{"type": "string", "pattern": f".*{i}.{{0,20}}x"} for i in range(30)]}
                ),
                "takes no more than 2 s and 1024 MiB to be compiled",
            ),
        ):
            with pytest.raises(RequestRefused, match=words):
                await driver.generate([1, 2], 8, structured_output=output)
        assert len(await other.finished()) == 100
        await driver.settled()
