from __future__ import annotations

import json
from pathlib import Path

import pytest

from distkv.errors import CheckpointError
from distkv.text.tokenizer import Tokenizer
from distkv.text.tokenizer_conversion import convert_tokenizer
from tests.checkpoints import TEXT, variant


def test_vocab_and_merges_become_a_tokenizer(tmp_path: Path) -> None:
    path = variant(tmp_path, "qwen2-tied")
    model = json.loads((path / "tokenizer.json").read_text())["model"]
    (path / "tokenizer.json").unlink()
    (path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    tokenizer = Tokenizer.from_dir(path, convert_tokenizer)
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


@pytest.mark.slow
def test_what_transformers_cannot_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(CheckpointError, match="transformers cannot convert its tokenizer"):
        convert_tokenizer(tmp_path)
