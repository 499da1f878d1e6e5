"""What is asked: cells of documents of one length and kind."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

import distkv
from distkv.demo.corpus import english
from distkv.demo.corpus.documents import Document, Filler, write

BANDS = 10
NUM_ABSENT = 8


class Cell(msgspec.Struct, frozen=True):
    """Documents of one length and kind. least_percent: the goal for their facts. facts: in each document.
    distkv_questions: how many questions about one of them distkv answers too."""

    tokens: int
    filler: Filler
    documents: int
    least_percent: float
    facts: int = 32
    distkv_questions: int = 0

    @property
    def name(self) -> str:
        what = "generated prose" if self.filler == "generated" else "plain English"
        return f"{self.tokens:,} tokens, {what}"


# A long document takes minutes, so there are fewer of them with more facts each.
FULL = (
    Cell(4096, "generated", 14, 99.5, distkv_questions=20),
    Cell(16384, "generated", 14, 99.5, distkv_questions=8),
    Cell(65536, "generated", 8, 99.0, facts=52, distkv_questions=2),
    Cell(131072, "generated", 4, 97.0, facts=104),
    Cell(4096, "english", 14, 95.0),
    Cell(16384, "english", 14, 95.0),
)
QUICK = (Cell(2048, "generated", 2, 99.5, distkv_questions=2), Cell(2048, "english", 2, 95.0))


def document_of(cell: Cell, number: int, tokenizer: Tokenizer, texts: Sequence[str]) -> Document:
    """The cell's document of this number, from 0; keys nearly collide in the odd ones."""
    return write(
        tokenizer,
        f"held out {cell.filler} {cell.tokens} {number}",
        cell.tokens,
        num_facts=cell.facts,
        num_absent=NUM_ABSENT,
        near=is_near(number),
        filler=cell.filler,
        texts=texts,
    )


def is_near(number: int) -> bool:
    """Whether most keys of the document of this number differ from another one in one word only."""
    return number % 2 == 1


def held_out_texts() -> list[str]:
    """Plain English that nothing was trained on: half of Python's texts, and this project's pages in a checkout."""
    root = Path(distkv.__file__).resolve().parent.parent
    pages = [root / "README.md", *sorted(root.glob("docs/*.md"))] if (root / "pyproject.toml").is_file() else []
    ours = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    trained = dict.fromkeys(english.texts("train"))  # some modules say the same
    return [*(text for text in english.texts("held out") if text not in trained), *ours * 8]


def band_of(depth: float) -> str:
    """The tenth of the document that a depth lies in."""
    band = min(BANDS - 1, int(depth * BANDS))
    return f"depth {band * 100 // BANDS}-{(band + 1) * 100 // BANDS} %"


def digest_of(*parts: str | bytes) -> str:
    """A short name for what these say together."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def digest_of_model(model: Path) -> str:
    """A short name for the checkpoint in this directory, by what is in its files."""
    return digest_of(*(path.read_bytes() for path in sorted(model.iterdir()) if path.is_file()))
