"""Instances of one cluster that take requests of different lengths: each request goes to one that takes it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from distkv import AsyncClient, RequestRefused, SamplingParams
from tests.checkpoints import TEXT, prompt_ids
from tests.cluster.driving import eventually

EIGHT = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


async def test_no_request_is_refused_that_another_instance_takes(start, checkpoint: Path) -> None:
    """Whether its length is known when it is sent, as that of token ids is, or not, as that of text."""
    options = [{"max_model_len": 64}, {}]
    cluster = start(2, 512, gateway=True, instance_options=options, served_model_name="tiny")
    async with AsyncClient(cluster.address) as client, httpx.AsyncClient(base_url=cluster.http_url) as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        longest = model["max_model_len"]
        assert longest == 2 * 512 - 16 + 1, "one lends all but one rBlock"
        text = TEXT[:200]  # estimated at 51 tokens, which the small one would take
        outputs = await asyncio.gather(
            *(client.submit(prompt, EIGHT) for prompt in [text] * 6 + [prompt_ids(90, seed) for seed in range(6)])
        )
        assert [len(output.token_ids) for output in outputs] == [8] * 12
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json={"prompt": text, "max_tokens": 8}, timeout=60) for _ in range(6))
        )
        assert [answer.status_code for answer in answers] == [200] * 6
        longest_one = {"prompt": prompt_ids(longest - 2, seed=9), "max_tokens": 2, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=longest_one, timeout=60)
        assert answer.json()["usage"]["total_tokens"] == longest, answer.text

        async def refused_for_good() -> httpx.Response | None:
            found = await http.post("/v1/completions", json=longest_one | {"max_tokens": 3})
            return found if found.status_code != 503 else None  # while others may join yet

        answer = await eventually(refused_for_good, 30, "the member list settles")
        assert f"maximum context length is {longest} tokens" in answer.json()["error"]["message"]
        with pytest.raises(RequestRefused) as refused:
            await client.submit(prompt_ids(longest, seed=9), SamplingParams(max_tokens=1))
        assert refused.value.needed_tokens == longest + 1
