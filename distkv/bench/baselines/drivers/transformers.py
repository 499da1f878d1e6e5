"""transformers: a loop over `forward`, which is what `generate` does without what it checks and prepares per call."""

from __future__ import annotations

import importlib
from typing import Any

from .loop import Arrivals, Prompts, arguments, private_stdout, serve


class Transformers:
    """A checkpoint with the default cache and attention. Prompts given together must be of one length."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        self._torch = torch
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self._model = loaded.eval()
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.settings = {
            "dtype": dtype,
            "threads": threads,
            "attention": loaded.config._attn_implementation,
            "cache": "DynamicCache",
            "loop": "forward in inference_mode, logits of the last token only",
        }

    def run(self, prompts: Prompts, max_tokens: int) -> Arrivals:
        """See Engine."""
        torch, cache = self._torch, None
        ids = torch.tensor(prompts)
        for _ in range(max_tokens):
            with torch.inference_mode():
                output = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                ids, cache = output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values
                tokens = ids[:, 0].tolist()
            yield from enumerate(tokens)


def main() -> None:
    """Load and serve."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    given = parser.parse_args()
    answers = private_stdout()
    serve(Transformers(given.model, given.dtype, given.threads), answers)


if __name__ == "__main__":
    main()
