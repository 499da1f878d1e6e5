"""Real text for a prompt: this project's own pages in a checkout, then what every Python installation has."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

import distkv


class Page(msgspec.Struct, frozen=True):
    """A text and what to call it."""

    name: str
    text: str


class Prompt(msgspec.Struct, frozen=True):
    """The beginning of some pages. num_tokens: by the tokenizer that it was cut with."""

    text: str
    num_tokens: int
    sources: tuple[str, ...]


def gather(characters: int) -> list[Page]:
    """Pages of together at least `characters` characters; only when there is no more text, some come again."""
    found: list[Page] = []
    while characters > 0:
        before = characters
        for page in _pages():
            if characters <= 0:
                break
            found.append(page)
            characters -= len(page.text)
        assert characters < before, "there is no text"
    return found


def cut(pages: Sequence[Page], tokenizer: Tokenizer, num_tokens: int) -> Prompt:
    """The first `num_tokens` tokens of the pages, and the rest of the word they end in. Raises ValueError if the
    pages have fewer."""
    text = "".join(page.text for page in pages)
    offsets = tokenizer.encode(text).offsets
    if len(offsets) < num_tokens:
        raise ValueError(f"the pages have {len(offsets)} tokens, {num_tokens} are wanted")
    end = offsets[num_tokens - 1][1]
    while end < len(text) and not text[end].isspace():
        end += 1
    sources: list[str] = []
    begin = 0
    for page in pages:
        if begin < end and page.name not in sources:
            sources.append(page.name)
        begin += len(page.text)
    return Prompt(text=text[:end], num_tokens=len(tokenizer.encode(text[:end]).ids), sources=tuple(sources))


def _pages() -> Iterator[Page]:
    package = Path(distkv.__file__).resolve().parent
    root = package.parent
    if (root / "pyproject.toml").is_file():
        for path in (root / "README.md", *sorted(root.glob("docs/**/*.md")), *sorted(package.glob("**/*.md"))):
            if path.is_file() and (text := path.read_text(encoding="utf-8")).strip():
                yield Page(str(path.relative_to(root)), text + "\n")
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    yield Page("Python's language reference", "\n".join(topics[name] for name in sorted(topics)))
