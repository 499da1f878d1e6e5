"""The same prompts and checkpoint in transformers, in a process of its own.

python -m distkv.demo.run.reference MODEL MAX_TOKENS < PROMPTS, a JSON list of texts
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from distkv.client.local import launch
from distkv.errors import DistKVError

TIMEOUT_S = 600.0
LAST_LINES = 5


class ReferenceFailed(DistKVError):
    """transformers did not answer; `log` holds its last lines."""

    def __init__(self, why: str, log: str = "") -> None:
        super().__init__(f"transformers did not answer: {why}" + (f"\n{log}" if log else ""))
        self.why, self.log = why, log


class Answer(msgspec.Struct, frozen=True):
    """Greedy tokens in float32 for each prompt, and by which version of transformers."""

    version: str
    token_ids: tuple[tuple[int, ...], ...]


def run(model: Path, prompts: Sequence[str], max_tokens: int, scratch: Path) -> Answer:
    """What transformers generates for these texts; its process has ended on return, also when interrupted.

    scratch: a directory for the caches that torch leaves. Raises ReferenceFailed.
    """
    env = launch.environment() | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TMPDIR": str(scratch)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name, str(model), str(max_tokens)],
            input=msgspec.json.encode(prompts),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,
            env=env,
        )
    except subprocess.TimeoutExpired:
        raise ReferenceFailed(f"it was not done within {TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()[-LAST_LINES:]
        raise ReferenceFailed(f"its process ended with code {done.returncode}", "\n".join(lines))
    return msgspec.json.decode(done.stdout, type=Answer)


def generate(model: Path, prompts: Sequence[str], max_tokens: int) -> Answer:
    """Load the checkpoint with transformers and generate greedily, prompt after prompt, in this process."""
    import torch

    torch.set_num_threads(1)  # so small a model only gets slower with more where others use the processors too
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = network.generate(**ids, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
        found.append(tuple(output[0, ids["input_ids"].shape[1] :].tolist()))
    return Answer(transformers.__version__, tuple(found))


def main() -> None:
    """Read the prompts from standard input, write the answers as JSON."""
    model, max_tokens = sys.argv[1:]
    prompts = msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])
    # Whatever libraries print goes beside the answer.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    answer = generate(Path(model), prompts, int(max_tokens))
    with os.fdopen(answer_fd, "wb") as out:
        out.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
