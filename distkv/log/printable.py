"""Names and sentences that came from elsewhere, on their way to a terminal or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every character that cannot be printed written as its escape, such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """As `printable`, but lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))
