"""`distkv bench distattention` from the command line."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from distkv.bench.computing import distattention
from distkv.bench.split_attention.goals import sent_case, time_case
from distkv.bench.split_attention.group import Step
from distkv.bench.split_attention.network import missing
from distkv.bench.split_attention.split import Split, exact_attention
from distkv.bench.split_attention.ways import DIST, HEADS, HOST, RING, SHAPED, WAYS, Link, Name
from distkv.engine.device.host_memory import HostMemory
from distkv.kernels.cpu.calls.library import installed
from tests.bench.quick_run import drawn_report

pytestmark = pytest.mark.skipif(
    not any(native.has_exchange for native in installed().levels.values()), reason="the native library is not built"
)


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels is what the three ways have to send: a query and a partial per creditor, the outputs of each
    process's heads, or half of the keys and values."""
    monkeypatch.setattr(distattention, "QUICK_CONTEXTS", (512,))
    monkeypatch.setattr(distattention, "QUICK_CHUNK_CONTEXTS", (256,))
    report = drawn_report(distattention.main, tmp_path)
    found = {(row["case"], row["variant"]): row["median"] for row in report["results"]}
    row_bytes, layers = 4 * 64, 2
    positions_bytes = 8 / layers
    for link, out_size in {HOST: 4, SHAPED: 2}.items():
        if link == SHAPED and missing():
            assert (time_case(link, 512), DIST) not in found
            continue
        for context, rows in ((512, 1), (256, 5)):
            assert all(found[time_case(link, context, rows), way] > 0 for way in WAYS)
            sent = {way: 1e6 * found[sent_case(link, context, rows), way] for way in WAYS}
            partial_bytes = out_size * row_bytes + 4 * 4
            assert sent[DIST] == pytest.approx(rows * (2 * row_bytes + partial_bytes + positions_bytes))
            assert sent[HEADS] == pytest.approx(rows * out_size * row_bytes)
            # Of a chunk each process needs the other one's half.
            readers = 1 if rows == 1 else 2
            assert sent[RING] == pytest.approx(readers * 2 * 2 * row_bytes * context / 2)
    (goal,) = report["goals"]
    assert (goal["met"] is None and missing() in goal["why"]) if missing() else RING in goal["goal"]


class Processes:
    """Each has its share of exact outputs; the wrong way has them turned round."""

    def __init__(self, split: Split, wrong: Name) -> None:
        self.split, self.wrong = split, wrong

    def step(self, way: Name, link: Link, layers: int | None = None, *, with_outputs: bool = False) -> Step:
        exact = exact_attention(self.split, 0).float()[None]
        return Step(1.0, 1, [-exact if way == self.wrong else exact])


@pytest.mark.parametrize("wrong", WAYS)
def test_a_wrong_result_is_not_measured(wrong: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distattention, "QUICK_CONTEXTS", (64,))
    monkeypatch.setattr(distattention, "QUICK_CHUNK_CONTEXTS", ())
    monkeypatch.setattr(distattention, "missing", lambda: "not wanted")
    monkeypatch.setattr(distattention, "started", lambda split, _: nullcontext(Processes(split, wrong)))
    with pytest.raises(RuntimeError, match=f"{wrong} is off by 200.00% over 0.0625K tokens"):
        distattention.main.main(["--quick"], standalone_mode=False)


def test_contexts_that_memory_cannot_hold_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distattention, "host_memory", lambda: HostMemory(0, 0))
    found = distattention.measure(lambda _: None, quick=True, processes=2, load="all", rounds=1)
    assert not found.samples
    assert found.facts["left_out"] == (
        "0.5K tokens: memory, 1K tokens: memory, a chunk of 5 behind 0.5K tokens: memory"
    )
