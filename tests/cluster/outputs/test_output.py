"""What users get: the same text and tokens however many instances hold the KV, streamed or not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distkv import LocalCluster, SamplingParams
from tests.checkpoints import TEXT, prompt_ids
from tests.cluster.conftest import started
from tests.cluster.driving import Driver, driving


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> Iterator[LocalCluster]:
    """One instance with room for everything."""
    with started(checkpoint, 1, 2048) as cluster:
        yield cluster


async def test_same_seed_same_tokens_on_one_and_on_three(three, alone):
    prompt = prompt_ids(1100, seed=3)
    seen = {}
    async with driving(three) as spread, driving(alone) as single:
        for seed in (1, 2):
            for params in ({"top_k": 20}, {"top_p": 0.9}, {"temperature": 0.7}):
                wanted = {"temperature": 1.0, "seed": seed} | params
                ours = await spread.generate(prompt, 16, **wanted)
                assert ours == await single.generate(prompt, 16, **wanted), wanted
                seen[seed, str(params)] = tuple(ours)
        assert len(set(seen.values())) == len(seen), "seeds and parameters make a difference"
        await spread.settled()


async def test_a_list_prompt_gets_no_added_tokens(alone, expect):
    async with driving(alone) as driver:
        prompt = [7]
        out = await (await driver.client()).submit(prompt, SamplingParams(max_tokens=8, temperature=0.0))
        assert out.prompt_tokens == 1
        expect(prompt, list(out.token_ids), 8)


async def unstopped(driver: Driver, prompt: str) -> tuple[list[int], list[str]]:
    """Tokens of an undisturbed run, and its text after each."""
    run = await driver.start(prompt, 48)
    tokens = await run.finished()
    assert len(tokens) == 48
    texts, text = [], ""
    for chunk in run.chunks:
        text += chunk.text
        texts += [text] * len(chunk.token_ids)
    return tokens, texts


async def test_stop_strings_end_the_text_before_them(alone):
    async with driving(alone) as driver:
        prompt = TEXT[:200]
        tokens, texts = await unstopped(driver, prompt)
        whole = texts[-1]
        stop = next(whole[i : i + 3] for i in range(len(whole) // 2, len(whole) - 3) if whole[i : i + 3].isascii())
        run = await driver.start(prompt, 48, stop=("never there", stop))
        await run.finished()
        assert run.finish_reason == "stop"
        assert run.text == whole[: whole.index(stop)]
        assert run.tokens == tokens[: len(run.tokens)]
        await driver.settled()


async def test_stop_ids_end_the_request(alone):
    async with driving(alone) as driver:
        tokens, _ = await unstopped(driver, TEXT[:200])
        ids = (tokens[20],)
        run = await driver.start(TEXT[:200], 48, stop_token_ids=ids)
        await run.finished()
        assert run.finish_reason == "stop"
        assert run.tokens == tokens[: tokens.index(ids[0]) + 1]
        await driver.settled()


async def test_joined_chunks_are_the_whole_text(three, checkpoint):
    """Byte-level tokens of a random model split characters all the time."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    prompt = TEXT * 3
    async with driving(three) as driver:
        for seed in range(3):
            params = {"temperature": 1.0, "seed": seed}
            run = await driver.start(prompt, 80, **params)
            await run.finished()
            client = await driver.client()
            out = await client.submit(prompt, SamplingParams(max_tokens=80, **params))
            assert run.text == out.text
            assert run.tokens == list(out.token_ids)
            assert out.text == tokenizer.decode(run.tokens, skip_special_tokens=True)
        await driver.settled()


@pytest.mark.slow
async def test_bfloat16_spread_equals_bfloat16_alone(checkpoint):
    with started(checkpoint, 3, 256, dtype="bfloat16") as spread, started(checkpoint, 1, 1024, dtype="bfloat16") as one:
        prompt = prompt_ids(600, seed=3)
        async with driving(spread) as a, driving(one) as b:
            ours, theirs = await a.generate(prompt, 16), await b.generate(prompt, 16)
            # Rounding may turn a near-tie; the beginning is far from one.
            assert ours[:4] == theirs[:4]
            await a.settled()


async def test_it_works_while_a_loop_runs_in_the_calling_thread(three, expect):
    assert asyncio.get_running_loop().is_running()
    prompt = prompt_ids(30)
    (out,) = three.generate([prompt], SamplingParams(max_tokens=4, temperature=0.0))
    expect(prompt, list(out.token_ids), 4)
    assert [token for c in three.stream(prompt, SamplingParams(max_tokens=4, temperature=0.0)) for token in c.token_ids]
    ready = [one["instance_id"] for one in three.status()["instances"] if one["state"] == "ready"]
    assert ready == ["i0", "i1", "i2"]


PROGRAM = """
import distkv, os, sys
assert "torch" not in sys.modules
options = {"kv_tokens": 256, "dtype": "float32", "threads": 1, "gateway": False}
with distkv.LocalCluster(model=os.environ["MODEL"], instances=1, **options) as cluster:
    outs = cluster.generate(["one", [5, 6, 7]], distkv.SamplingParams(max_tokens=4, temperature=0.0))
    print([out.finish_reason for out in outs], len(cluster.status()["instances"]))
"""


@pytest.mark.slow
def test_it_works_from_standard_input(checkpoint):
    done = subprocess.run(
        [sys.executable, "-"],
        input=PROGRAM,
        env=os.environ | {"MODEL": str(checkpoint)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "['length', 'length'] 1\n", done.stderr
    assert done.returncode == 0
