"""Where a stop string begins in a text that grows: each character is looked at once for each stop string, not each
time that more text comes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter


class StopStrings:
    """Follows one text. Cost of a character: constant for each stop string (Knuth, Morris and Pratt), and next to
    nothing for those that it does not begin or go on. completed: the stop string that ended the output."""

    def __init__(self, stops: Sequence[str], *, are_part: bool = False) -> None:
        """are_part: of the output, whose end they are then; else it ends before them."""
        self._searches = [_Search(stop) for stop in stops]
        self._are_part = are_part
        self.completed: str | None = None

    @property
    def begun(self) -> int:
        """How many of the last characters could still turn out not to be of the output."""
        return 0 if self._are_part else max((search.matched for search in self._searches), default=0)

    def push(self, text: str, *, counts: bool = True) -> int | None:
        """Take what follows; where the output ends, if a stop string is complete now, counted from the beginning of
        `text`: negative if before it. After such an answer no text may follow. counts: False if what is complete now
        ends nothing."""
        found = [
            (end if self._are_part else end - search.length, search.stop)
            for search in self._searches
            if (end := search.push(text, counts)) is not None
        ]
        if not found:
            return None
        end, self.completed = min(found, key=itemgetter(0))
        return end


class _Search:
    """For one stop string. matched: of how many characters the longest beginning of it is that the text ends with."""

    __slots__ = ("_borders", "length", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.matched = 0
        self.length = len(stop)
        self.stop = stop
        # Of each beginning of the stop string the longest that it ends with too; found when first needed.
        self._borders = [0, 0]

    def push(self, text: str, counts: bool) -> int | None:
        """Take what follows; where in it the stop string is complete for the first time, if that counts."""
        stop, matched, at = self.stop, self.matched, 0
        while at < len(text):
            if not matched:
                at = text.find(stop[0], at)
                if at < 0:
                    break
            elif stop[matched] != text[at]:
                matched = self._border(matched)
                continue
            matched += 1
            at += 1
            if matched == self.length:
                if counts:
                    return at
                matched = self._border(matched)
        self.matched = matched
        return None

    def _border(self, length: int) -> int:
        """The longest beginning, shorter than `length`, that the first `length` characters end with."""
        stop, borders = self.stop, self._borders
        while len(borders) <= length:
            border, last = borders[-1], stop[len(borders) - 1]
            while border and stop[border] != last:
                border = borders[border]
            borders.append(border + 1 if stop[border] == last else 0)
        return borders[length]
