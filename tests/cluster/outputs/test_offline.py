"""Batches without a server: `LLM` before real instances, beside transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from distkv import LLM, SamplingParams
from distkv.types import TokenLogprobs
from tests.checkpoints import check_logprobs, prompt_ids, reference_logits

CHAT = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
SCRIPT = """
import distkv
llm = distkv.LLM({model!r}, kv_tokens=256, dtype="float32", threads=1)
print(llm.generate([[5, 6]], distkv.SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].finish_reason)
"""
"""As it is pasted: without a guard, and without an end."""


def test_batches_are_those_of_transformers(checkpoint: Path, expect) -> None:
    """The longest prompt is longer than either pool."""
    prompts = [prompt_ids(length, seed=length) for length in (600, 3, 40, 17)]
    params = [SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, logprobs=1) for _ in prompts]
    settings = {"dtype": "float32", "threads": 1, "validate_state": True}
    with LLM(checkpoint, instances=2, kv_tokens=512, **settings) as llm:
        tokenizer = llm.get_tokenizer()
        found = llm.generate(prompts, params, use_tqdm=False)
        for prompt, output in zip(prompts, found, strict=True):
            (out,) = output.outputs
            assert output.prompt_token_ids == prompt and out.text == tokenizer.decode(out.token_ids)
            expect(prompt, out.token_ids, 12)
            logits = reference_logits(checkpoint, [*prompt, *out.token_ids])
            for place, (token, told) in enumerate(zip(out.token_ids, out.logprobs, strict=True)):
                chosen = told[token]
                best = max(told.items(), key=lambda one: one[1].logprob)
                as_told = TokenLogprobs(token, chosen.logprob, chosen.rank, ((best[0], best[1].logprob),))
                check_logprobs(as_told, logits[len(prompt) + place - 1], token, 1)
        texts = [out.text for output in found for out in output.outputs]
        messages = [{"role": "user", "content": "rBlocks"}]
        (answer,) = llm.chat(messages, params[0], use_tqdm=False, chat_template=CHAT)
        assert answer.prompt == "user: rBlocks\n"
        expect(answer.prompt_token_ids, answer.outputs[0].token_ids, 12)
        stop = next(character for character in texts[1] if texts[1].count(character))
        stopped = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, stop=stop)
        (output,) = llm.generate([prompts[1]], stopped, use_tqdm=False)
        assert (output.outputs[0].text, output.outputs[0].stop_reason) == (texts[1].partition(stop)[0], stop)


def test_a_script_needs_no_guard_and_leaves_nothing_behind(checkpoint: Path) -> None:
    """Its processes are children of its own; this test fails if they outlive it."""
    script = SCRIPT.format(model=str(checkpoint))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "length\n"), done.stderr
    assert "1/1" in done.stderr
