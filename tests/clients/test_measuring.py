"""What measures models and servers: lm-eval, AIPerf, and who reads metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from distkv import LocalCluster
from distkv.text.tokenizer import Tokenizer
from tests.checkpoints import reference_logits
from tests.clients.conftest import Ask, Run, block
from tests.clients.environment import INSTALL_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S + 120)]
CLOSE = 2e-3
END = 0

QUESTIONS = [
    {
        "question": "The access code of the gate is 48213.\nQuestion: What is the access code of the gate?\nAnswer:",
        "choices": ["48213", "77120", "Greta Holm"],
        "answer": 0,
    },
    {
        "question": "The keeper of the old mill is Greta Holm.\nQuestion: What is the keeper of the old mill?\nAnswer:",
        "choices": ["48213", "Greta Holm"],
        "answer": 1,
    },
]
FACTS = """
task: facts
dataset_path: json
dataset_kwargs: {data_files: facts.jsonl}
test_split: train
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
PAGES = """
task: pages
dataset_path: json
dataset_kwargs: {data_files: facts.jsonl}
test_split: train
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}]
"""


class Scorer:
    """transformers' logprobs in float32."""

    def __init__(self, checkpoint: Path) -> None:
        tokenizer = Tokenizer.from_dir(checkpoint)
        assert tokenizer is not None
        self.tokenizer, self.checkpoint = tokenizer, checkpoint

    def continuation(self, context: str, text: str) -> tuple[float, bool]:
        """(logprob, whether greedy decoding gives it)."""
        before, ids = (self.tokenizer.encode(one) for one in (context, context + text))
        return self._of(ids, len(before))

    def page(self, text: str) -> float:
        """Logprob of a text after the end token."""
        return self._of([END, *self.tokenizer.encode(text)], 1)[0]

    def _of(self, ids: list[int], start: int) -> tuple[float, bool]:
        rows = reference_logits(self.checkpoint, ids).log_softmax(-1)
        places = range(start, len(ids))
        is_greedy = all(int(rows[place - 1].argmax()) == ids[place] for place in places)
        return sum(float(rows[place - 1, ids[place]]) for place in places), is_greedy


def check(facts: list[Any], pages: list[Any], checkpoint: Path) -> None:
    """Answers of lm-eval, one item per question, are those of transformers."""
    scorer = Scorer(checkpoint)
    for question, answers in zip(QUESTIONS, facts, strict=True):
        scored = [scorer.continuation(question["question"], f" {choice}") for choice in question["choices"]]
        told = [(float(logprob), str(is_greedy) == "True") for ((logprob, is_greedy),) in answers]
        assert [logprob for logprob, _ in told] == pytest.approx([logprob for logprob, _ in scored], abs=CLOSE)
        assert [is_greedy for _, is_greedy in told] == [is_greedy for _, is_greedy in scored]
        assert told[question["answer"]][1]
    for question, ((logprob,),) in zip(QUESTIONS, pages, strict=True):
        assert float(logprob) == pytest.approx(scorer.page(question["question"]), abs=CLOSE)


def test_lm_eval(ask: Ask, run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "facts.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
    for name, text in (("facts", FACTS), ("pages", PAGES)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    told = ask("with_lm_eval.py", checkpoint, "facts", "pages")
    check(told["facts"], told["pages"], checkpoint)
    # As the page has it, and with the gateway's tokenizer.
    run("bash", "-ec", block("docs/usage.md", "sh", "lm_eval"))
    found = {
        name: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for name in ("facts", "pages")
        for file in (tmp_path / "results").rglob(f"samples_{name}_*.jsonl")
    }
    in_order = {name: sorted(samples, key=lambda one: one["doc_id"]) for name, samples in found.items()}
    check(*([one["resps"] for one in in_order[name]] for name in ("facts", "pages")), checkpoint)
    assert all(one["acc"] == 1.0 for one in in_order["facts"])


def counters(url: str) -> dict[str, float]:
    values = {
        sample.name: sample.value
        for family in plain_families(httpx.get(f"{url}/metrics", timeout=60).text)
        for sample in family.samples
        if sample.labels.get("finished_reason") in (None, "length")
    }
    wanted = ("distkv:prompt_tokens_total", "distkv:generation_tokens_total", "distkv:request_success_total")
    return {name: values[name] for name in wanted}


def test_aiperf(demo: LocalCluster, run: Run, tmp_path: Path) -> None:
    before = counters(demo.http_url)
    # AIPerf looks for no directory of a tokenizer where this is set.
    run("env", "--unset=HF_HUB_OFFLINE", "bash", "-ec", block("docs/gateway.md", "sh", "aiperf profile"))
    after = counters(demo.http_url)
    (report,) = (tmp_path / "artifacts").rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["completed_request_count"]["avg"] == 24 and found["request_error_rate"]["avg"] == 0
    assert found["error_summary"] == [] and found["is_complete"]
    assert found["usage_prompt_tokens"]["min"] >= 200 and found["usage_completion_tokens"]["min"] == 32
    assert list(after[name] - before[name] for name in before) == [
        found["total_usage_prompt_tokens"]["avg"],
        found["total_usage_completion_tokens"]["avg"],
        24,
    ]


def test_metrics_are_read_in_both_formats(demo: LocalCluster) -> None:
    plain = httpx.get(f"{demo.http_url}/metrics", timeout=60)
    accept = {"accept": "application/openmetrics-text"}
    opened = httpx.get(f"{demo.http_url}/metrics", headers=accept, timeout=60)
    assert opened.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in open_families(opened.text)}
    assert {"distkv:up", "distkv:prompt_tokens", "distkv:time_to_first_token_seconds"} <= names
    assert names <= {family.name for family in plain_families(plain.text)}
