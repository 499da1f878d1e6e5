"""Queries and partials of a captured step by memory of the host, which answers as a creditor's device would."""

from __future__ import annotations

import threading
import time

import torch
from torch import Tensor

from distkv.engine.attention.mailbox.ends import MailboxEnd
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Device
from distkv.kernels.cpu.torch_backend import TorchBackend
from distkv.kernels.mail_table import MailField, MailTable, addresses
from distkv.kernels.mailbox import MailStatus, post, take
from distkv.wire.links.memory.mailbox_memory import make_mailbox

LAYERS, ROWS = 20, 4
_LIMIT_S = 5.0
_FIRST = 7


def mail_in_a_graph(device: Device, heads: int, dim: int) -> str:
    """What it took, in words; inside a stream of the device. Raises RuntimeError, AssertionError when the device and
    its host do not see what the other one writes."""
    memory = make_mailbox(ROWS * heads * dim * 4, ROWS * heads * (dim + 1) * 4)
    memory.forget()
    host_memory = torch.frombuffer(memory.view, dtype=torch.uint8)
    shared = device.share(memory.view) if device.is_async else host_memory
    if shared is None:
        raise RuntimeError("the device does not reach memory of the host")
    end, host = (MailboxEnd(memory, *one) for one in ((shared, device), (host_memory, CpuDevice(TorchBackend()))))
    place, q = device.place, torch.zeros(ROWS, heads, dim, device=device.place)
    out, lse = torch.zeros_like(q), torch.zeros(ROWS, heads, device=place)
    table = MailTable(torch.zeros(2, len(MailField) + ROWS, dtype=torch.int64, device=place))

    def run() -> tuple[Tensor, ...]:
        for layer in range(LAYERS):
            device.backend.post_all(table, layer, q + layer)
            device.backend.take_all(table, layer, out, lse)
        return out, lse

    @torch.inference_mode()
    def answer() -> None:
        queries = torch.zeros(ROWS, heads, dim)
        for number in range(_FIRST, _FIRST + LAYERS):
            take(host.queries, number, queries, limit_s=_LIMIT_S)
            post(host.partials, number, 2 * queries, queries.sum(-1))

    run()
    captured = device.capture(run)
    fields = [*addresses(end.queries, end.partials), _FIRST, ROWS, ROWS, 0, int(_LIMIT_S * 1e9)]
    lines = torch.tensor([[0] * (len(fields) + ROWS), [*fields, *reversed(range(ROWS))]])
    device.write(table.numbers, lines)
    device.write(q, given := torch.randn(ROWS, heads, dim))
    device.synchronize()
    creditor = threading.Thread(target=answer)
    creditor.start()
    begun_s = time.perf_counter()
    captured.replay()
    device.synchronize()
    spent_s = time.perf_counter() - begun_s
    creditor.join()
    for name, one in (("the device", end), ("the host", host)):
        if (status := one.outcome().status) is not MailStatus.OK:
            raise RuntimeError(f"mail to {name} ended as {status.name}")
    torch.testing.assert_close(out.cpu(), 2 * (given.flip(0) + LAYERS - 1))
    torch.testing.assert_close(lse.cpu(), (given.flip(0) + LAYERS - 1).sum(-1))
    return f"{1e6 * spent_s / LAYERS:.0f} µs for a layer, a host's Python in it"
