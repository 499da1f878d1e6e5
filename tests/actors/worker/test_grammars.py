"""The worker's grammars: what compiles, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.actors.worker import grammars as module
from distkv.actors.worker.grammars import Grammars
from distkv.engine.sampling.constraints import Constraints
from distkv.structured_output import StructuredOutput
from distkv.wire.messages.to_worker import Compile
from tests.checkpoints import variant

pytest.importorskip("llguidance", reason="llguidance is not installed in this environment: pip install -e .")

VOCAB = 320
GOOD = Compile(grammar_id=4, output=StructuredOutput.regex("[a-z]+"))


def made(path: Path) -> tuple[Grammars, Constraints]:
    constraints = Constraints(VOCAB, (0,))
    return Grammars("ipc://@nobody", str(path), constraints, VOCAB), constraints


def test_steps_may_name_what_compiles(tmp_path: Path) -> None:
    grammars, constraints = made(variant(tmp_path, "llama", vocab=VOCAB))
    assert grammars._compile(GOOD) == "" and list(constraints._grammars) == [4]
    assert "unclosed group" in grammars._compile(Compile(grammar_id=5, output=StructuredOutput.regex("(a")))
    constraints.forget([], [4])
    assert not constraints._grammars


def test_a_model_without_a_tokenizer_has_no_grammars(tmp_path: Path) -> None:
    path = variant(tmp_path, "llama", vocab=VOCAB)
    (path / "tokenizer.json").unlink()
    grammars, _constraints = made(path)
    grammars.prepare()
    assert "has no tokenizer.json, which structured output needs" in grammars._compile(GOOD)
    (path / "tokenizer.model").write_bytes(b"")
    assert "has tokenizer.model but no tokenizer.json" in grammars._compile(GOOD)


@pytest.mark.parametrize("large", [VOCAB, VOCAB + 1])
def test_a_large_vocabulary_is_read_before_there_are_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(module, "LARGE", large)
    grammars, _constraints = made(variant(tmp_path, "llama", vocab=VOCAB))
    grammars.prepare()
    assert (grammars._vocabulary is not None) == (large == VOCAB)
