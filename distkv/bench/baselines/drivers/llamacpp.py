"""llama.cpp, through the C interface that llama-cpp-python exposes; the checkpoint becomes a GGUF file first."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from .gguf_file import write_gguf
from .loop import Arrivals, Prompts, arguments, private_stdout, serve

BATCH_TOKENS = 2048
UBATCH_TOKENS = 512


class LlamaCpp:
    """One context for single prompts and one for several, each sequence with its own cells, as `llama-server` has it
    without --kv-unified."""

    def __init__(self, model: str, dtype: str, threads: int, tokens: int, sequences: int, flash: bool) -> None:
        self._numpy: Any = importlib.import_module("numpy")
        package: Any = importlib.import_module("llama_cpp")
        self._lib = lib = package.llama_cpp
        lib.llama_backend_init()
        path = write_gguf(Path(model), dtype)
        self._model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._threads, self._flash = threads, flash
        self._single = self._context(tokens, 1)
        self._several = self._context(2048 * sequences, sequences) if sequences > 1 else self._single
        self._batch = lib.llama_batch_init(BATCH_TOKENS, 0, 1)
        self.versions = {"llama-cpp-python": package.__version__}
        self.settings = {
            "weights": dtype,
            "kv": "f16",
            "flash attention": flash,
            "threads": threads,
            "n_batch": BATCH_TOKENS,
            "n_ubatch": UBATCH_TOKENS,
            "system": " ".join(lib.llama_print_system_info().decode().split()),
        }

    def run(self, prompts: Prompts, max_tokens: int) -> Arrivals:
        """See Engine."""
        context = self._single if len(prompts) == 1 else self._several
        self._lib.llama_memory_clear(self._lib.llama_get_memory(context), False)
        # A batch is filled with the prompts in order, so short ones share it.
        rows = [(seq, at, token) for seq, ids in enumerate(prompts) for at, token in enumerate(ids)]
        last: list[int] = [0] * len(prompts)
        for start in range(0, len(rows), BATCH_TOKENS):
            chunk = rows[start : start + BATCH_TOKENS]
            wanted = [at == len(prompts[seq]) - 1 for seq, at, _ in chunk]
            for seq, token in self._decode(context, chunk, wanted):
                last[seq] = token
                yield seq, token
        for step in range(max_tokens - 1):
            chunk = [(seq, len(ids) + step, last[seq]) for seq, ids in enumerate(prompts)]
            for seq, token in self._decode(context, chunk, [True] * len(chunk)):
                last[seq] = token
                yield seq, token

    def _decode(self, context: Any, chunk: list[tuple[int, int, int]], wanted: list[bool]) -> list[tuple[int, int]]:
        """The (sequence, greedy token) of those rows (sequence, position, token) that want one."""
        lib, batch = self._lib, self._batch
        batch.n_tokens = len(chunk)
        for row, (seq, position, token) in enumerate(chunk):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, seq
            batch.logits[row] = wanted[row]
        if code := lib.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        lib.llama_synchronize(context)
        found = []
        for row, (seq, _, _) in enumerate(chunk):
            if wanted[row]:
                logits = self._numpy.ctypeslib.as_array(lib.llama_get_logits_ith(context, row), shape=(self._vocab,))
                found.append((seq, int(logits.argmax())))
        return found

    def _context(self, tokens: int, sequences: int) -> Any:
        lib = self._lib
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = tokens, sequences, False
        params.n_batch, params.n_ubatch = BATCH_TOKENS, UBATCH_TOKENS
        params.n_threads = params.n_threads_batch = self._threads
        kinds = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED, lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.flash_attn_type = kinds[self._flash]
        params.no_perf = True
        context = lib.llama_init_from_model(self._model, params)
        if not context:
            raise SystemExit(f"llama.cpp cannot make a context of {tokens} tokens")
        return context


def main() -> None:
    """Load and serve."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--flash-attention", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    answers = private_stdout()
    engine = LlamaCpp(given.model, given.dtype, given.threads, given.tokens, given.sequences, given.flash_attention)
    serve(engine, answers)


if __name__ == "__main__":
    main()
