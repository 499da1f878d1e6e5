"""StopStrings against a search through the whole text, and what a character costs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distkv.control.request.answer.stop_strings import StopStrings


class Looked(str):
    """A stop string that counts how often its characters are looked at."""

    __slots__ = ("count",)
    count: int

    def __getitem__(self, index):
        self.count = getattr(self, "count", 0) + 1
        return super().__getitem__(index)


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=6), max_size=4),
    free=st.lists(st.text("abc", max_size=5), max_size=10),
    pieces=st.lists(st.text("abc", max_size=5), max_size=20),
    are_part=st.booleans(),
)
def test_finds_what_a_search_of_the_whole_text_finds(
    stops: list[str], free: list[str], pieces: list[str], are_part: bool
) -> None:
    search, text = StopStrings(stops, are_part=are_part), ""
    for index, piece in enumerate([*free, *pieces]):
        counts = index >= len(free)
        end = search.push(piece, counts=counts)
        before, text = len(text), text + piece
        found = [(at, at + len(stop)) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
        found = [place for place in found if place[1] > before]
        if counts and found:
            assert end is not None and before + end == min(place[are_part] for place in found)
            at = before + end
            assert search.completed in stops
            assert text.endswith(search.completed, 0, at) if are_part else text.startswith(search.completed, at)
            return
        assert end is None
        begun = (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))
        assert search.begun == (0 if are_part else max(begun, default=0))


def looked_at(length: int) -> int:
    """How often, for a text that nearly ends with a long stop string all the time, a token of a character each."""
    stop = Looked("a" * (length - 1) + "b")
    search = StopStrings([stop])
    for _ in range(4 * length):
        assert search.push("a") is None
    assert search.begun == length - 1
    return stop.count


def test_a_character_costs_the_same_however_much_is_held_back() -> None:
    assert looked_at(1000) < 11 * looked_at(100)
