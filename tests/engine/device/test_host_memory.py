"""Memory of a machine, and of a control group that has less."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.engine.device.host_memory import HostMemory, available_bytes, host_memory

MIB = 2**20


def write(place: Path, **files: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / f"memory.{name}").write_text(f"{content}\n")


@pytest.fixture
def machine(tmp_path: Path) -> HostMemory:
    """No control groups."""
    return host_memory(tmp_path / "none", tmp_path)


def test_the_machine_has_what_no_group_limits(tmp_path: Path, machine: HostMemory) -> None:
    assert machine.all_bytes >= machine.free_bytes > 0 and machine.left_bytes is None
    groups = tmp_path / "cgroup"
    groups.write_text("3:cpu:/x\n0::/a\n")
    write(tmp_path / "a", max="max", current=MIB, stat="inactive_file 0")
    write(tmp_path / "x", max=1, current=1, stat="inactive_file 0")
    found = host_memory(groups, tmp_path)
    assert (found.all_bytes, found.left_bytes) == (machine.all_bytes, None)
    write(tmp_path / "a", max=2**63 - 4096)
    assert host_memory(groups, tmp_path).left_bytes is None, "more than there is, as version 1 writes it"


def test_what_keeps_files_is_free(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:  4000 kB\nMemFree:  1000 kB\nMemAvailable:    3000 kB\n")
    assert available_bytes(told) == 3000 * 1024
    told.write_text("MemTotal:  4000 kB\n")
    assert available_bytes(told) == available_bytes(tmp_path / "none") == 0


def test_the_tightest_group_counts_and_files_give_way(tmp_path: Path) -> None:
    """The pool of a container of 2 GiB was made for the machine, and filling it ended the worker."""
    groups = tmp_path / "cgroup"
    groups.write_text("0::/a/b\n")
    stat = "inactive_file 1048576\nactive_file 2097152\nshmem 7\nslab_reclaimable 1048576"
    write(
        tmp_path / "a",
        max=9 * MIB,
        current=9 * MIB,
        stat=stat,
    )
    write(tmp_path / "a/b", max=40 * MIB, current=3 * MIB, stat="inactive_file 0")
    assert host_memory(groups, tmp_path) == HostMemory(9 * MIB, 4 * MIB, 4 * MIB)
    write(tmp_path / "a", current=99 * MIB)
    assert host_memory(groups, tmp_path) == HostMemory(9 * MIB, 0, 0)


def test_the_root_is_what_a_container_sees_of_its_own_group(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory,hugetlb:/docker/unseen\n0::/\n")
    write(tmp_path / "memory", limit_in_bytes=6 * MIB, usage_in_bytes=MIB, stat="total_active_file 524288\ncache 1")
    assert host_memory(groups, tmp_path) == HostMemory(6 * MIB, 5 * MIB + MIB // 2, 5 * MIB + MIB // 2)


def test_what_a_group_hardly_goes_on_beyond_is_no_memory_of_its_own(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/a\n")
    write(tmp_path / "a", max="max", high=8 * MIB, current=3 * MIB, stat="inactive_file 0")
    assert host_memory(groups, tmp_path) == HostMemory(8 * MIB, 5 * MIB, None)
    write(tmp_path / "a", max=20 * MIB)
    assert host_memory(groups, tmp_path) == HostMemory(8 * MIB, 5 * MIB, 17 * MIB)
