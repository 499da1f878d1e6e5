"""Memory in huge pages: parts do not overlap, and a chunk lives as long as any of its parts."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path

import pytest
import torch

from distkv.kernels.cpu.huge_pages import CHUNK_BYTES, LINE_BYTES, PAGE_BYTES, HugePages

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_parts_are_zeroed_begin_at_a_line_and_do_not_overlap() -> None:
    memory = HugePages()
    parts = [memory.take(size) for size in (1, 1000, LINE_BYTES, 0, 3 * PAGE_BYTES + 5, 7)]
    for index, part in enumerate(parts):
        assert part.data_ptr() % LINE_BYTES == 0
        assert not part.any()
        part.fill_(index + 1)
    assert all(bool((part == index + 1).all()) for index, part in enumerate(parts))


def test_a_part_that_no_chunk_holds_has_one_of_its_own() -> None:
    memory = HugePages()
    before, large, after = memory.take(10), memory.take(CHUNK_BYTES + 10), memory.take(10)
    assert len(large) == CHUNK_BYTES + 10 and large.data_ptr() % PAGE_BYTES == 0
    large[-1] = 1
    before.fill_(2)
    after.fill_(3)
    assert large[-1] == 1 and not large[:-1].any()


def test_a_part_has_a_chunk_of_its_own_where_there_is_room_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = mmap.mmap

    def limited(number: int, size: int, **named: int) -> mmap.mmap:
        if size > 8 * PAGE_BYTES:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return mapped(number, size, **named)

    monkeypatch.setattr(mmap, "mmap", limited)
    memory = HugePages()
    parts = [memory.take(1000), memory.take(1000), memory.take(5 * PAGE_BYTES)]
    assert [len(part) for part in parts] == [1000, 1000, 5 * PAGE_BYTES]
    with pytest.raises(MemoryError, match="no memory for weights of"):
        memory.take(9 * PAGE_BYTES)


def test_a_chunk_goes_back_with_its_last_part() -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

    gc.collect()
    memory, size = HugePages(), 8 * CHUNK_BYTES
    before = mapped()
    first, second = memory.take(size - LINE_BYTES), memory.take(LINE_BYTES)
    del first
    assert mapped() >= before + size, "the second part lies in it"
    del second, memory
    assert mapped() < before + size


@pytest.mark.skipif(not THP.exists() or "[never]" in THP.read_text(), reason="the system has no huge pages")
def test_what_is_written_lies_in_huge_pages() -> None:
    part = HugePages().take(16 * PAGE_BYTES)
    part.fill_(1)
    start = part.data_ptr()
    found = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and ":" not in head:
            first, end = (int(one, 16) for one in head.split("-"))
            inside = first < start + len(part) and end > start
        elif inside and head == "AnonHugePages:":
            found += int(line.split()[1]) * 1024
    if not found:
        pytest.skip("the system had none to give")
    assert found >= len(part) // 2 and torch.equal(part[:4], torch.ones(4, dtype=torch.uint8))
