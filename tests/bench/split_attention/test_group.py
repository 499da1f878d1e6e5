"""The three ways in processes: equal results, the bytes they must send, and those of the network."""

from __future__ import annotations

import socket
import threading

import pytest

from distkv.bench.split_attention.group import started
from distkv.bench.split_attention.network import missing, sent_bytes, shaped_network
from distkv.bench.split_attention.split import Split, exact_attention
from distkv.bench.split_attention.tensor_parallel import AllGather
from distkv.bench.split_attention.ways import DIST, HEADS, HOST, RING, SHAPED, WAYS, Name
from distkv.kernels.cpu.calls.library import installed

with_exchange = pytest.mark.skipif(
    not any(native.has_exchange for native in installed().levels.values()), reason="the native library is not built"
)


@with_exchange
@pytest.mark.slow
def test_four_processes_agree_and_send_what_they_must() -> None:
    split = Split(context=1024, processes=4, layers=3, heads=4, dim=64)
    exact = [exact_attention(split, layer) for layer in range(split.layers)]
    row_bytes = split.heads * split.dim
    expected = {
        DIST: 3 * (3 * (2 * row_bytes + 4 * row_bytes + 4 * split.heads) + 8),
        HEADS: 3 * 3 * 4 * row_bytes,
        RING: 3 * 3 * split.layer_bytes // 4,
    }
    with started(split) as group:
        for way in WAYS:
            step = group.step(way, HOST, with_outputs=True)
            assert step.seconds > 0 and step.sent_bytes == expected[way]
            assert len(step.outputs) == (4 if way == HEADS else 1)
            for outputs in step.outputs:
                for layer, found in enumerate(exact):
                    assert float((outputs[layer] - found).abs().max() / found.abs().max()) < 0.01
        assert group.step(RING, HOST, 1).sent_bytes == expected[RING] // 3


@with_exchange
@pytest.mark.skipif(bool(missing()), reason=f"no shaped network: {missing()}")
def test_bytes_that_are_counted_pass_the_shaped_links() -> None:
    """And little else does: headers of frames, TCP and Ethernet."""
    split = Split(context=4096, processes=2, layers=2, heads=4, dim=64)
    with shaped_network(2) as places, started(split, places) as group:
        counted: dict[Name, int] = {}
        for way in WAYS:
            group.step(way, SHAPED)
            before = sent_bytes(places)
            counted[way] = group.step(way, SHAPED).sent_bytes
            passed = sent_bytes(places) - before
            assert counted[way] <= passed <= 1.1 * counted[way] + 4096
        before = sent_bytes(places)
        group.step(RING, HOST)
        assert sent_bytes(places) - before < 4096
    assert counted[RING] > 100 * counted[DIST] > 100 * counted[HEADS]


@pytest.mark.parametrize("size", [1, 1 << 12, 1 << 22])
def test_all_gather(size: int) -> None:
    """Also where all send more than sockets hold before any of them reads."""
    left, right = socket.socketpair(socket.AF_UNIX)
    buffers = [[bytearray(size) for _ in range(2)] for _ in range(2)]
    with left, right:
        gathers = [AllGather(0, {1: left}), AllGather(1, {0: right})]
        for process, parts in enumerate(buffers):
            parts[process][:] = bytes([process + 1]) * size
        other = threading.Thread(target=gathers[1], args=([memoryview(part) for part in buffers[1]],))
        other.start()
        gathers[0]([memoryview(part) for part in buffers[0]])
        other.join()
        for gather in gathers:
            gather.close()
    assert buffers[0] == buffers[1] == [bytearray(b"\1" * size), bytearray(b"\2" * size)]


def test_all_gather_with_one_that_has_ended() -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    with left:
        gather = AllGather(0, {1: left})
        right.close()
        with pytest.raises((EOFError, BrokenPipeError)):
            gather.barrier()
        gather.close()
