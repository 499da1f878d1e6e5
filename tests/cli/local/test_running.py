"""What a stop waits for, in words."""

from __future__ import annotations

import pytest

from distkv.cli.local.running import _waiting


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ({"i0": 1}, "waiting for 1 request on i0; Ctrl-C again ends it"),
        ({"i2": 12}, "waiting for 12 requests on i2; Ctrl-C again ends them"),
        ({"i0": 1, "i1": 3}, "waiting for 1 request on i0, 3 on i1; Ctrl-C again ends them"),
        ({}, "no request is left; ending the processes"),
    ],
)
def test_what_a_stop_waits_for(requests: dict[str, int], said: str) -> None:
    assert _waiting(requests) == said
