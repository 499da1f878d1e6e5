"""Prefill chunks of the engine alone whose first tokens lie at a creditor in another process."""

from __future__ import annotations

import time
from array import array

from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.bench.workloads.computing.creditor import BLOCK_TOKENS, COMPAT, NAME, SPAN, VALUE
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.runner import StepRunner
from distkv.token_ids import pack
from distkv.types import PrefillKv, Transport
from distkv.wire.links import LinkIdentity
from distkv.wire.messages.common import Member, Run
from distkv.wire.messages.to_worker import RemoteSpan, SeqStep, Step

LINK_S = 10.0
ATTEND_TIMEOUT_S = 30.0


def local_blocks(rows: int) -> int:
    """What a chunk has before it in its own pool, and itself: as much again as it is."""
    return 2 * -(-rows // BLOCK_TOKENS)


class RemotePrefill:
    """A debtor of one way: each step computes the same chunk again. remote_blocks: at the creditor, in all steps."""

    def __init__(self, model: Model, most_rows: int, member: Member, way: PrefillKv, transport: Transport) -> None:
        config, dtype = model.config, model.dtype
        self._pool = KvPool(config, local_blocks(most_rows), BLOCK_TOKENS, dtype, None, model.device.backend.layout)
        for slot in range(self._pool.num_slots):
            self._pool.slot(slot).view(dtype).fill_(VALUE)
        identity = LinkIdentity(instance_id=f"debtor-{way}", incarnation=1, compat=COMPAT)
        self._peers = PeerLinks(identity, self._pool.slot_bytes, ATTEND_TIMEOUT_S, transport)
        self._peers.update((member,))
        self._runner = StepRunner(model, self._pool, self._peers, None, way)
        self._steps = 0
        self.remote_blocks = 0
        deadline = time.monotonic() + LINK_S
        while way != "ship" and self._peers.fetch_link(NAME) is None:
            if time.monotonic() > deadline:
                raise RuntimeError("there is no link to the creditor")
            time.sleep(0.01)

    def step(self, rows: int, remote_tokens: int) -> float:
        """Seconds of one chunk of so many rows, with so many tokens at the creditor."""
        remote, own = remote_tokens // BLOCK_TOKENS, local_blocks(rows)
        end = (remote + own) * BLOCK_TOKENS
        seq = SeqStep(
            request_id="r",
            version=0,
            attempt=self._steps,
            start=end - rows,
            end=end,
            tokens=pack(array("i", [1] * rows)),
            local=(Run(remote, 0, own),),
            remote=(RemoteSpan(instance_id=NAME, span=SPAN, index=0, first_block=0, num_blocks=remote),),
        )
        self._steps += 1
        started_s = time.perf_counter()
        (result,) = self._runner.run(Step(step_id=self._steps, seqs=(seq,)))
        took_s = time.perf_counter() - started_s
        self.remote_blocks += remote
        if result.status != "ok":
            raise RuntimeError(f"a chunk lost its keys at {result.lost}")
        return took_s

    @property
    def fetched_blocks(self) -> int:
        """Of those, how many were fetched; queries were shipped to the others."""
        return self._runner.counters.fetched_blocks

    def close(self) -> None:
        """End its links."""
        self._peers.update((), (NAME,))
