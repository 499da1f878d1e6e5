"""Two workers on one GPU both say how much they take, or one of them is refused."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from distkv.engine.device.claims import claim
from distkv.errors import ConfigError


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_who_takes_what_it_finds_is_alone(tmp_path: Path, first: bool, second: bool) -> None:
    with ExitStack() as stack:
        taken = claim("cuda:0", "one", alone=first, directory=tmp_path)
        assert taken is not None
        stack.enter_context(taken)
        with pytest.raises(ConfigError, match=r"another instance computes on cuda:0.*give both of them kv_tokens"):
            claim("cuda:0", "one", alone=second, directory=tmp_path)
        other = claim("cuda:1", "two", alone=True, directory=tmp_path)
        assert other is not None
        other.close()
    again = claim("cuda:0", "one", alone=True, directory=tmp_path)
    assert again is not None, "it ends with the process"
    again.close()


def test_those_with_sizes_share(tmp_path: Path) -> None:
    claims = [claim("cuda:0", "one", alone=False, directory=tmp_path) for _ in range(3)]
    for one in claims:
        assert one is not None
        one.close()


def test_where_there_can_be_no_file_nobody_is_refused(tmp_path: Path) -> None:
    assert claim("cuda:0", "one", alone=True, directory=tmp_path / "none") is None
