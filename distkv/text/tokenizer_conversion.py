"""Tokenizer files of older formats, converted by transformers in a process of its own because that loads torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from distkv.errors import CheckpointError

_TIMEOUT_S = 120.0
_PROGRAM = (
    "import sys; from transformers import AutoTokenizer; "
    "sys.stdout.write(AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True).backend_tokenizer.to_str())"
)


def convert_tokenizer(model_dir: Path) -> str:
    """The text of a tokenizer.json for a directory that has none; blocks for seconds. Raises CheckpointError."""
    path = str(model_dir)
    if find_spec("transformers") is None:
        raise CheckpointError(path, "has no tokenizer.json; install transformers to have its tokenizer converted")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, path], capture_output=True, timeout=_TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(path, f"its tokenizer was not converted within {_TIMEOUT_S:.0f} s") from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise CheckpointError(path, f"transformers cannot convert its tokenizer: {last}") from error
    return done.stdout.decode()
