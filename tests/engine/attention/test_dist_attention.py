"""dist_attention: the order of its five verbs on the host and on an asynchronous device, and who is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from distkv.engine.attention.dist_attention import dist_attention
from distkv.engine.attention.merging import merge_plan_of
from distkv.engine.device.cpu import CpuDevice
from distkv.kernels import Backend, Partial, merge
from distkv.kernels.cpu.torch_backend import TorchBackend
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.data import AttendEntry, AttendPlan
from tests.engine.async_device import AsyncHost

HEADS, DIM, LAYER = 2, 4, 3
Q = torch.arange(3 * HEADS * DIM, dtype=torch.float32).view(3, HEADS, DIM)


def partial(seed: int, rows: int = 3) -> Partial:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, HEADS, DIM, generator=generator), torch.randn(rows, HEADS, generator=generator)


class Link:
    """A CreditorLink of two rows that records what happens. partial: what it collects."""

    posts = False

    def __init__(self, calls: list[str], name: str, partial: Partial | None, is_open: bool = True) -> None:
        self._calls, self._name, self._partial, self.is_open = calls, name, partial, is_open
        self.rows, self.partial_rows = slice(1, 3), 2
        self.sent: list[Tensor] = []
        self.since_s: list[float] = []

    def send(self, layer: int, q: Tensor) -> None:
        self._calls.append(f"send {self._name} {layer}")
        self.sent.append(q)

    def collect(self, layer: int, since_s: float) -> Partial | None:
        self._calls.append(f"collect {self._name} {layer}")
        self.since_s.append(since_s)
        return self._partial


class Setting:
    """One layer over a batch of three rows, two of which have keys on the given links."""

    def __init__(self, device: CpuDevice, *partials: Partial | None, is_open: bool = True) -> None:
        self.calls: list[str] = []
        self.device, self.local = device, partial(0)
        device.backend = cast(Backend, self)
        self.links = [Link(self.calls, str(index), one, is_open) for index, one in enumerate(partials)]
        ref = SpanRef(span_id="s", epoch=Epoch(1, 1))
        entry = AttendEntry(request_id="r", span=ref, index=0, num_blocks=1, first_position=0, row=0, num_rows=2)
        plans = [AttendPlan(step_id=1, num_rows=2, entries=(entry,))] * len(partials)
        parts = [(slice(1, 3), [(index, 0) for index in range(len(partials))], 0)]
        merge_plan = merge_plan_of(parts if partials else [], plans)
        self.batch = SimpleNamespace(
            links=self.links,
            fetched=[],
            attend_s=0.0,
            metadata=None,
            merge_plan=merge_plan,
            waited_s=0.0,
            times=None,
            exchange=None,
        )

    def store(self, layer: int) -> Tensor:
        self.calls.append(f"store {layer}")
        return Q

    def attend(self, *_: Any) -> Partial:
        self.calls.append("attend")
        return self.local[0].clone(), self.local[1].clone()

    def merge(self, partials: list[Partial]) -> Partial:
        self.calls.append(f"merge {len(partials)}")
        return TorchBackend().merge(partials)

    def run(self) -> Tensor:
        backend: Any = self
        pieces: Any = SimpleNamespace(
            store=self.store,
            attend=self.attend,
            merge=lambda local, partials: self.batch.merge_plan.merge(local, partials, backend),
        )
        batch: Any = self.batch
        turns = dist_attention(LAYER, pieces, batch, self.device)
        with self.device.stream():
            assert next(turns) is None
            self.calls.append("others")
            with pytest.raises(StopIteration) as done:
                next(turns)
        attended: Tensor = done.value.value
        return attended


@pytest.fixture(params=[CpuDevice, AsyncHost])
def device(request: pytest.FixtureRequest) -> Iterator[CpuDevice]:
    yield request.param()


def test_the_five_verbs(device: CpuDevice) -> None:
    """Queries leave before the host computes, and after an asynchronous device was given its work."""
    setting = Setting(device, partial(1, 2), partial(2, 2))
    attended = setting.run()
    sent = ["send 0 3", "send 1 3"]
    first = ["attend", *sent] if device.is_async else [*sent, "attend"]
    assert setting.calls == ["store 3", *first, "others", "collect 0 3", "collect 1 3", "merge 3"]
    assert all(torch.equal(link.sent[0], Q[1:]) for link in setting.links)
    torch.testing.assert_close(attended[0], setting.local[0][0])
    local = setting.local[0][1:], setting.local[1][1:]
    torch.testing.assert_close(attended[1:], merge([local, partial(1, 2), partial(2, 2)])[0])
    assert setting.batch.waited_s > 0
    assert len({tuple(link.since_s) for link in setting.links}) == 1, "all are waited for together"


def test_without_peers_it_is_local_attention(device: CpuDevice) -> None:
    setting = Setting(device)
    assert torch.equal(setting.run(), setting.local[0])
    assert setting.calls == ["store 3", "attend", "others"] and setting.batch.waited_s == 0


def test_partials_that_do_not_come_change_nothing(device: CpuDevice) -> None:
    setting = Setting(device, None, partial(2, 2))
    local = setting.local[0][1:], setting.local[1][1:]
    torch.testing.assert_close(setting.run()[1:], merge([local, partial(2, 2)])[0])


def test_a_closed_link_gets_no_queries(device: CpuDevice) -> None:
    setting = Setting(device, None, is_open=False)
    torch.testing.assert_close(setting.run(), setting.local[0])
    assert "send 0 3" not in setting.calls
