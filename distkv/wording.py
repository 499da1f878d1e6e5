"""How numbers of things are written for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """ "1 rBlock", "2,048 rBlocks"."""
    return f"{number:,} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """The noun as it stands behind so many, or before a list of them."""
    return noun if number == 1 else f"{noun}s"
