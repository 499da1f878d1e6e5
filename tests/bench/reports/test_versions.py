"""`distkv bench versions` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import distkv
from distkv.bench.reports import versions
from distkv.errors import ConfigError

ROOT = Path(distkv.__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkout_beside_itself(tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    versions.main.main([str(ROOT), "--quick", "--json", str(file)], standalone_mode=False)
    report = json.loads(file.read_text())
    assert {row["variant"] for row in report["results"]} == {versions.THIS, versions.OTHER}
    assert {row["case"] for row in report["results"]} == {"tiny, batch 1 x 64, tokens/s"}
    assert all(row["median"] > 0 for row in report["results"])
    assert [goal["goal"] for goal in report["goals"]] == [
        "tiny, batch 1 x 64, tokens/s: speed against the other checkout"
    ]


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no checkout of distkv"):
        versions.main.main([str(tmp_path), "--quick"], standalone_mode=False)


def test_slower_is_told_from_noise() -> None:
    slower = {versions.THIS: [9.0, 9.1, 8.9, 9.0], versions.OTHER: [10.0, 10.0, 10.1, 10.0]}
    assert versions._no_slower("decode after 1,024 tokens", slower).met is False
    assert versions._no_slower("time to first of 2,560 tokens", slower).met is True, "seconds are better when fewer"
    noisy = {versions.THIS: [9.0, 11.0, 9.0, 11.5], versions.OTHER: [10.0, 10.0, 10.0, 10.0]}
    assert versions._no_slower("decode after 1,024 tokens", noisy).met is True
