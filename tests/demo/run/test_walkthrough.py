"""How long the prompts of a walkthrough may be."""

from __future__ import annotations

import re

import pytest

from distkv.demo.run.walkthrough import Options
from distkv.errors import InvalidParams


@pytest.mark.parametrize("instances", range(2, 10))
@pytest.mark.parametrize("kv_tokens", [256, 1000, 4096])
def test_a_prompt_is_longer_than_a_pool_and_fits_the_cluster(instances, kv_tokens):
    options = Options(instances=instances, kv_tokens=kv_tokens)
    lendable = options.pool_tokens + (instances - 1) * (options.pool_tokens - 16)
    assert options.pool_tokens < options.prompt_tokens <= lendable - 16
    assert options.prompt_tokens >= 2.5 * options.pool_tokens or instances < 3
    with pytest.raises(InvalidParams, match="tokens: expected from 320 to"):
        _ = Options(instances=instances, kv_tokens=kv_tokens, tokens=10**6).prompt_tokens


def test_most_tokens_that_are_told_are_possible():
    with pytest.raises(InvalidParams) as error:
        _ = Options(tokens=10**6).prompt_tokens
    most = int(re.findall(r"\d+", error.value.expected)[1])
    assert Options(tokens=most).prompt_tokens == most
    with pytest.raises(InvalidParams):
        _ = Options(tokens=most + 1).prompt_tokens
