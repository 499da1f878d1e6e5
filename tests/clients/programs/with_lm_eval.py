"""What lm-eval makes of texts where it has the tokenizer itself: python with_lm_eval.py URL CHECKPOINT TASK..."""

import json
import sys
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager


def found(url: str, checkpoint: str, tasks: list[str]) -> dict[str, Any]:
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "demo",
            "base_url": f"{url}/v1/completions",
            "tokenizer": checkpoint,
            "tokenizer_backend": "huggingface",
            "tokenized_requests": False,
            "num_concurrent": 4,
        },
        tasks=tasks,
        task_manager=TaskManager(include_path=".", include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    return {name: [one["resps"] for one in samples] for name, samples in results["samples"].items()}


if __name__ == "__main__":
    print(json.dumps(found(sys.argv[1], sys.argv[2], sys.argv[3:])))
