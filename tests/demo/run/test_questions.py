"""The prompts over one document."""

from __future__ import annotations

import pytest

from distkv.config import DEMO_MODEL, model_dir
from distkv.demo.run.questions import OwnFact, plan_prompts
from distkv.errors import InvalidParams


@pytest.mark.parametrize("num_tokens", [400, 2600])
def test_what_is_asked_fits_and_is_in_the_document(num_tokens):
    prompts, count = plan_prompts(model_dir(DEMO_MODEL), 3, num_tokens)
    assert [prompt.expected == "not mentioned" for prompt in prompts] == [False, False, False, True]
    for prompt in prompts:
        assert num_tokens - 120 < count(prompt.text) <= num_tokens
        assert prompt.text.endswith(f"\nQuestion: {prompt.question}\nAnswer:")
        assert prompt.expected is not None
        assert (f" {prompt.expected}." in prompt.text) == (prompt.expected != "not mentioned")
    assert plan_prompts(model_dir(DEMO_MODEL), 3, num_tokens)[0] == prompts


def test_a_fact_of_ones_own_stands_in_the_middle():
    (prompt,), count = plan_prompts(model_dir(DEMO_MODEL), 3, 600, OwnFact("It is blue.", "What is it?"))
    assert count(prompt.text) <= 600
    assert 0.4 < prompt.text.index(". It is blue.") / len(prompt.text) < 0.6
    assert prompt.text.endswith("\nQuestion: What is it?\nAnswer:")


def test_a_fact_of_ones_own_must_leave_room():
    with pytest.raises(InvalidParams, match="ask: expected a fact and a question of at most 180 tokens"):
        plan_prompts(model_dir(DEMO_MODEL), 0, 500, OwnFact("x " * 400, "y?"))
