"""Two workers on one GPU both say how much they take, or one of them is refused."""

from __future__ import annotations

import os
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


def test_other_users_read_what_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one whose files are for nobody else, as those of a umask of 077."""
    mask = os.umask(0o077)
    try:
        first = claim("cuda:0", "one", alone=False, directory=tmp_path)
    finally:
        os.umask(mask)
    assert first is not None and os.fstat(first.fileno()).st_mode & 0o777 == 0o644
    path, wanted = tmp_path / "distkv-one.claim", os.open

    def of_somebody_else(name: str, flags: int, mode: int = 0o777) -> int:
        if Path(name) == path and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError
        return wanted(name, flags, mode)

    monkeypatch.setattr(os, "open", of_somebody_else)
    with pytest.raises(ConfigError):
        claim("cuda:0", "one", alone=True, directory=tmp_path)
    first.close()


def test_where_there_can_be_no_file_nobody_is_refused(tmp_path: Path) -> None:
    assert claim("cuda:0", "one", alone=True, directory=tmp_path / "none") is None
