"""A creditor's data plane in a process of its own: a pool that is lent as one span, and steps of its own on demand.

`python -m distkv.bench.workloads.computing.creditor` says where it is reached, then follows its standard input: each
line says whether it computes steps of its own, and each answer what it did since the one before.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from distkv.bench.baselines.checkpoints import Model as Shape
from distkv.bench.harness.line_process import LineProcess, say
from distkv.engine.attention.layer_times import ServedTimes
from distkv.wire.messages.common import DataEndpoint, Epoch, Member, SpanRef

if TYPE_CHECKING:
    from distkv.engine.attention.serving import AttendServer

SPAN = SpanRef(span_id="s", epoch=Epoch(1, 1))
COMPAT = "bench"
BLOCK_TOKENS = 16
NAME = "creditor"
VALUE = 0.01
OWN_BATCH, OWN_CONTEXT = 4, 512
_STEPS = 4096
_NOTED_S = 0.02


class Lent(msgspec.Struct, frozen=True):
    """What a creditor is started with. core: to stay on, if any. traced: whether it notes each layer that it serves."""

    shape: Shape
    blocks: int
    core: int | None
    name: str = NAME
    traced: bool = False


class Asked(msgspec.Struct, frozen=True):
    """is_busy: whether it computes steps of its own from now on. is_traced: answered when all it served is noted."""

    is_busy: bool
    is_traced: bool


class Done(msgspec.Struct, frozen=True):
    """What a creditor did since it was asked last. own_steps: of its own."""

    own_steps: int
    served: tuple[ServedTimes, ...]


class Creditor(LineProcess):
    """The process, seen from outside; ends with its context."""

    def __init__(self, lent: Lent) -> None:
        super().__init__("distkv.bench.workloads.computing.creditor", msgspec.json.encode(lent).decode())
        endpoint = self.answer(DataEndpoint)
        self.member = Member(instance_id=lent.name, incarnation=1, address="", state="ready", data=endpoint)

    def load(self, is_busy: bool, is_traced: bool = False) -> Done:
        """Whether it computes steps of its own from now on; returns what it did until now."""
        self.tell(Asked(is_busy, is_traced))
        return self.answer(Done)


def main(lent: Lent) -> None:
    """The process itself."""
    if lent.core is not None:
        os.sched_setaffinity(0, [lent.core])
    sys.setswitchinterval(0.0005)  # as a worker has it
    # Before this its threads would be on other cores.
    import torch

    from distkv.actors.worker.links.link_server import LinkServer
    from distkv.bench.workloads.computing.random_model import random_model
    from distkv.engine.attention.serving import AttendServer
    from distkv.engine.attention.spans import SpanRegistry
    from distkv.engine.device.cpu import CpuDevice
    from distkv.engine.device.pool import KvPool, slot_bytes
    from distkv.wire.links import LinkIdentity, PoolMemory, listen

    device = CpuDevice()
    device.backend.use_threads(1, ())
    model = random_model(lent.shape, device)
    memory = PoolMemory(slot_bytes(model.config, BLOCK_TOKENS, model.dtype), lent.blocks)
    torch.frombuffer(memory.view, dtype=torch.uint8).view(model.dtype).fill_(VALUE)
    pool = KvPool(model.config, lent.blocks, BLOCK_TOKENS, model.dtype, memory.view, device.backend.layout)
    registry = SpanRegistry()
    registry.grant(SPAN, tuple(range(lent.blocks)))
    server = AttendServer(pool, registry, model.config, model.dtype, device)
    server.times = [] if lent.traced else None
    identity = LinkIdentity(instance_id=lent.name, incarnation=1, compat=COMPAT)
    listener = listen("127.0.0.1:0", identity, memory)
    own = OwnSteps(model)
    threading.Thread(target=LinkServer(listener, server, memory).run, daemon=True).start()
    threading.Thread(target=own.run, daemon=True).start()
    say(listener.endpoint)
    for line in sys.stdin:
        asked = msgspec.json.decode(line, type=Asked)
        if asked.is_traced:
            _wait_until_noted(server)
        steps = own.count
        own.is_wanted.set() if asked.is_busy else own.is_wanted.clear()
        done = Done(steps - own.reported, tuple(server.times or ()))
        own.reported = steps
        if server.times is not None:
            server.times = []
        say(done)


def _wait_until_noted(server: AttendServer) -> None:
    """The layers of a step are noted together, when who asked already has the last."""
    noted = -1
    while noted != (noted := len(server.times or [])):
        time.sleep(_NOTED_S)


class OwnSteps:
    """A creditor's own decode steps, as long as they are wanted. count: all so far; reported: of them."""

    def __init__(self, model: Any) -> None:
        self.is_wanted = threading.Event()
        self.count = self.reported = 0
        self._model = model

    def run(self) -> None:
        """The thread that computes them."""
        from distkv.bench.workloads.computing.decode_steps import DecodeSteps

        while True:
            self.is_wanted.wait()
            steps = DecodeSteps(self._model, OWN_BATCH, OWN_CONTEXT, _STEPS)
            for _ in range(_STEPS):
                if not self.is_wanted.is_set():
                    break
                steps.run(1)
                self.count += 1


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Lent))
    # Its threads may be in the middle of a step.
    os._exit(0)
