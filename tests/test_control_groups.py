"""How many threads can compute, where control groups leave less than the cores of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.control_groups import usable_threads


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))


def threads(tmp_path: Path, text: str, cores: int = 0) -> int:
    (tmp_path / "cgroup").write_text(text)
    return usable_threads(cores, tmp_path / "cgroup", tmp_path)


def put(place: Path, **files: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / f"cpu.{name}").write_text(content + "\n")


def test_without_groups_all_cores_that_may_be_used(tmp_path: Path) -> None:
    assert usable_threads(0, tmp_path / "none", tmp_path) == 8
    assert usable_threads(3, tmp_path / "none", tmp_path) == 3


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("max 100000", "max 100000", 8),
        ("400000 100000", "max 100000", 4),
        ("max 100000", "399000 100000", 3),
        ("600000 100000", "500000 100000", 5),
        ("50000 100000", "max 100000", 1),
        ("9900000 100000", "max 100000", 8),
    ],
)
def test_the_tightest_quota_in_whole_cores(tmp_path: Path, inner: str, outer: str, expected: int) -> None:
    put(tmp_path / "a", max=outer)
    put(tmp_path / "a/b", max=inner)
    assert threads(tmp_path, "0::/a/b\n") == expected
    assert threads(tmp_path, "0::/a/b\n", cores=2) == min(expected, 2)


def test_version_1_and_the_root_that_a_container_sees(tmp_path: Path) -> None:
    put(tmp_path / "cpu", cfs_quota_us="250000", cfs_period_us="100000")
    assert threads(tmp_path, "4:cpu,cpuacct:/docker/unseen\n0::/\n") == 2
    put(tmp_path / "cpu", cfs_quota_us="-1")
    assert threads(tmp_path, "4:cpu,cpuacct:/docker/unseen\n0::/\n") == 8


@pytest.mark.parametrize("content", ["no number", "100000 0", ""])
def test_what_is_no_quota_limits_nothing(tmp_path: Path, content: str) -> None:
    put(tmp_path / "a", max=content)
    assert threads(tmp_path, "0::/a\n") == 8
