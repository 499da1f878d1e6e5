from __future__ import annotations

from distkv.wording import counted, plural


def test_only_one_is_singular() -> None:
    assert [counted(number, "rBlock") for number in (0, 1, 2048)] == ["0 rBlocks", "1 rBlock", "2,048 rBlocks"]
    assert (plural(1, "core"), plural(62, "core")) == ("core", "cores")
