"""An engine with a random model, and the vocabulary that its grammars are compiled for."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.text.structured_output import Vocabulary
from distkv.text.tokenizer import Tokenizer
from tests.checkpoints import variant
from tests.engine.harness import Engine
from tests.engine.sampling.following import VOCAB


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama", vocab=VOCAB)


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, num_slots=256)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    found = Tokenizer.from_dir(path)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, VOCAB)
