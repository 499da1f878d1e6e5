"""The demo model over several instances: an answer is right only if every remote rBlock was attended to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from distkv import LocalCluster, SamplingParams
from distkv.config import DEMO_MODEL, model_dir
from distkv.demo.corpus.documents import prompt_of
from distkv.demo.run.questions import QuestionPrompt, plan_prompts
from tests.cluster.driving import driving, eventually

GREEDY = SamplingParams(max_tokens=16, temperature=0.0)


def prompts_of(seed: int, num_tokens: int) -> list[QuestionPrompt]:
    """Questions about a document that the model never saw: three facts at all depths, and one that is not there."""
    return plan_prompts(model_dir(DEMO_MODEL), seed, num_tokens)[0]


@pytest.fixture(scope="module")
def demo_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(instances=3, kv_tokens=3072, dtype="float32", threads=1, validate_state=True) as cluster:
        yield cluster


@pytest.mark.slow
def test_facts_are_found_in_a_document_of_8k_tokens_over_three_instances(demo_cluster):
    prompts = prompts_of(1001, 8192)[:3]
    outs = demo_cluster.generate([prompt.text for prompt in prompts], GREEDY)
    assert all(out.prompt_tokens > 2.5 * 3072 for out in outs)
    wrong = [
        (out.text, prompt) for out, prompt in zip(outs, prompts, strict=True) if out.text.strip() != prompt.expected
    ]
    assert not wrong and all(out.finish_reason == "stop" for out in outs)


async def test_the_gateway_serves_it_by_name_and_in_a_chat(demo_cluster):
    import openai

    note = "The access code of the north station is 48213. The keeper of the old mill is Greta Holm."
    async with openai.AsyncOpenAI(base_url=f"{demo_cluster.http_url}/v1", api_key="none") as client:
        prompt = prompt_of(note, "What is the access code of the north station?")
        plain = await client.completions.create(model="demo", prompt=prompt, temperature=0)
        assert plain.choices[0].text.strip() == "48213"
        chat = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": f"{note}\nWhat is the keeper of the old mill?"}],
            temperature=0,
        )
        assert (chat.choices[0].message.content or "").strip() == "Greta Holm"


async def test_a_creditor_killed_in_the_middle_of_an_answer_does_not_change_it(demo_cluster):
    """The last one here: the creditor stays dead."""
    prompt = max(prompts_of(7, 4096)[:3], key=lambda one: len(one.expected or ""))
    async with driving(demo_cluster) as driver:
        # Going on after the end gives time to lose the creditor before the answer is through.
        run = await driver.start(prompt.text, 256, ignore_eos=True)

        async def placed() -> bool:
            return len(await driver.spans(run)) > 1

        await eventually(placed, 20, "some of it lies elsewhere")
        creditor = await driver.creditor(run)
        lost = (await driver.spans(run))[creditor]
        await run.reached(1)
        driver.instance(creditor).kill()
        await run.finished()
        assert run.text.strip().startswith(prompt.expected)
        recomputed = [status.instance.counters.recomputed_tokens for status in (await driver.statuses()).values()]
        assert max(recomputed) >= lost
