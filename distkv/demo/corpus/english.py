"""Plain English that every Python installation has: its docstrings and its language reference, in two halves.

One half trains the demo model and its tokenizer, the other is held out to measure it.
"""

from __future__ import annotations

import ast
import importlib
import re
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

Half = Literal["train", "held out"]

_LEAST_CHARACTERS = 120
_LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "__pycache__")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_PIECE = re.compile(r"\s*\S[^\n]*?(?:[.:?!](?=\s)|(?=\n)|$)")


def texts(half: Half) -> Iterator[str]:
    """Docstrings of the standard library, by module, and topics of the reference, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root)
        if not any(part in _LEFT_OUT for part in module.parts) and _half(str(module)) == half:
            yield from _docstrings(path)
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        if _half(name) == half:
            yield topics[name].strip()


def pieces(text: str) -> list[str]:
    """The text cut at the ends of sentences and lines, each piece with the white space before it."""
    return _PIECE.findall(text)


def common_words(chosen: Iterable[str], least: int = 4) -> list[str]:
    """The lower-case words of 3 to 12 letters that stand in the texts at least so often, in alphabetical order."""
    counts = Counter(word for text in chosen for word in re.findall(r"(?<![\w.])[a-z]{3,12}(?=[ ,.])", text))
    return sorted(word for word, count in counts.items() if count >= least)


def _half(name: str) -> Half:
    return "train" if zlib.crc32(name.encode()) % 2 else "held out"


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            text = ast.get_docstring(node)
            if text and len(text) >= _LEAST_CHARACTERS:
                yield text
