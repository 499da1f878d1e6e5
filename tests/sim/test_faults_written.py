"""Faults as a person writes them."""

from __future__ import annotations

import pytest

from distkv.errors import ConfigError
from distkv.sim.faults import failure, restart, slowness
from distkv.sim.spec import GMANAGER, Kill, Restart, Slow


def test_what_is_written_is_what_happens() -> None:
    assert failure("i3@60") == (Kill(60.0, "i3"),)
    assert failure(" gmanager@30-40.5 ") == (Kill(30.0, GMANAGER), Restart(40.5, GMANAGER))
    assert restart("i12@.5") == (Restart(0.5, "i12"),)
    assert slowness("i2@10-50x3") == (Slow(10.0, 50.0, "i2", 3.0),)
    assert slowness("i2@0-1.5x0.5") == (Slow(0.0, 1.5, "i2", 0.5),)


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (failure, "", "fail: expected NAME@SECONDS or NAME@FROM-TO, as i3@60 or gmanager@30-40, got ''"),
        (failure, "i3", "got 'i3'"),
        (failure, "@3", "got '@3'"),
        (failure, "i3@", "got 'i3@'"),
        (failure, "i3@x", "got 'i3@x'"),
        (failure, "i3@-5", "got 'i3@-5'"),
        (failure, "i3@nan", "got 'i3@nan'"),
        (failure, "i3@1e5", "got 'i3@1e5'"),
        (failure, "i3@60-50", "expected an end after 60 s, got 'i3@60-50'"),
        (failure, "i3@60-60", "expected an end after 60 s"),
        (failure, "i3@60-70x2", "expected no factor: --slow has one"),
        (failure, "i3@60@70", "got 'i3@60@70'"),
        (failure, "i 3@60", "got 'i 3@60'"),
        (failure, "i3@" + "9" * 30, r"expected numbers of at most 1e\+09, got 'i3@9+'"),
        (failure, "x" * 1000, "got 1000 characters"),
        (restart, "i3@4-5", "restart: expected one time"),
        (restart, "i3", "restart: expected NAME@SECONDS, as i3@90"),
        (slowness, "i2@10", "slow: expected NAME@FROM-TOxFACTOR, as i2@10-50x3"),
        (slowness, "i2@10x3", "slow: expected NAME@FROM-TOxFACTOR"),
        (slowness, "i2@10-50", "slow: expected NAME@FROM-TOxFACTOR"),
        (slowness, "i2@10-50x0", "slow: expected a factor above 0"),
        (slowness, "i2@10-50x-1", "slow: expected NAME@FROM-TOxFACTOR"),
    ],
)
def test_what_cannot_be_read_is_said_with_what_was_expected(read, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(text)
