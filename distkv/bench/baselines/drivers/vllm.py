"""vLLM for CPU: its `LLM` engine, stepped by hand so that every token has its time."""

from __future__ import annotations

import importlib
import itertools
import os
from typing import Any

from .loop import Arrivals, Prompts, arguments, private_stdout, serve


class Vllm:
    """A checkpoint in bfloat16; the engine and its worker are processes of their own."""

    def __init__(self, model: str, dtype: str, threads: int, tokens: int, sequences: int) -> None:
        kv_gib = 2
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        os.environ.update(environment)
        package: Any = importlib.import_module("vllm")
        options = {"model": model, "dtype": dtype, "max_model_len": tokens, "max_num_seqs": sequences}
        options |= {"skip_tokenizer_init": True, "disable_log_stats": True}
        self._llm = package.LLM(**options)
        self._engine = self._llm.llm_engine
        self._params = package.SamplingParams
        self._kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
        self._ids = itertools.count()
        self.versions = {"vllm": package.__version__, "torch": importlib.import_module("torch").__version__}
        self.settings = {"environment": environment, "LLM": options}

    def run(self, prompts: Prompts, max_tokens: int) -> Arrivals:
        """See Engine."""
        params = self._params(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, output_kind=self._kind
        )
        names = {}
        for index, ids in enumerate(prompts):
            name = f"r{next(self._ids)}"
            names[name] = index
            self._engine.add_request(name, {"prompt_token_ids": ids}, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                for token in output.outputs[0].token_ids:
                    yield names[output.request_id], token


def main() -> None:
    """Load and serve."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    given = parser.parse_args()
    answers = private_stdout()
    serve(Vllm(given.model, given.dtype, given.threads, given.tokens, given.sequences), answers)


if __name__ == "__main__":
    main()
