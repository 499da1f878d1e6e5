"""Decode steps of the engine alone, of one sequence that has some of its keys at creditors in other processes."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import torch

from distkv.bench.workloads.computing.creditor import BLOCK_TOKENS, COMPAT, SPAN, VALUE
from distkv.bench.workloads.computing.decode_steps import GREEDY
from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.bodies import out_dtype_of
from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.attention.layer_times import LayerTimes
from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.decoder import Model
from distkv.engine.step.runner import StepRunner
from distkv.token_ids import pack
from distkv.types import Transport
from distkv.wire.links import LinkIdentity, TensorLink, connect, hello_to
from distkv.wire.messages.common import Member, Run
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import OutDtype
from distkv.wire.messages.to_worker import RemoteSpan, SeqStep, Step

PATIENCE_S = 30.0
_TOKENS = 1


class Debtor:
    """A model and a pool that could hold the longest context alone. Each step computes a token behind the same keys."""

    def __init__(self, model: Model, most_tokens: int) -> None:
        blocks = most_tokens // BLOCK_TOKENS + 1
        memory = torch.empty(blocks * slot_bytes(model.config, BLOCK_TOKENS, model.dtype), dtype=torch.uint8)
        memory.view(model.dtype).fill_(VALUE)
        self._model = model
        self._pool = KvPool(model.config, blocks, BLOCK_TOKENS, model.dtype, memory, model.device.backend.layout)

    def steps(self, context: int, creditors: Sequence[Member]) -> DecodeSteps:
        """Steps behind `context` tokens, the first of which lie at the creditors, as many at each as here."""
        return DecodeSteps(self._model, self._pool, context, creditors)


class DecodeSteps:
    """Of one sequence; it ends with `close`."""

    def __init__(self, model: Model, pool: KvPool, context: int, creditors: Sequence[Member]) -> None:
        self._peers = Linked(creditors, "auto", out_dtype_of(model.dtype))
        self._creditors = [member.instance_id for member in creditors]
        self._runner = StepRunner(model, pool, self._peers, None, "ship")
        blocks = context // BLOCK_TOKENS
        share = blocks // (len(creditors) + 1)
        self._remote = tuple(
            RemoteSpan(instance_id=name, span=SPAN, index=0, first_block=index * share, num_blocks=share)
            for index, name in enumerate(self._creditors)
        )
        first = share * len(creditors)
        self._local, self._context = (Run(first, 0, blocks - first + 1),), blocks * BLOCK_TOKENS
        self._steps = 0
        self.remote_tokens = share * BLOCK_TOKENS

    def step(self) -> float:
        """Seconds of one token."""
        seq = SeqStep(
            request_id="r",
            version=0,
            attempt=0,
            start=self._context,
            end=self._context + 1,
            tokens=pack(array("i", [_TOKENS])),
            local=self._local,
            remote=self._remote,
            sample=GREEDY,
        )
        self._steps += 1
        started_s = time.perf_counter()
        (result,) = self._runner.run(Step(step_id=self._steps, seqs=(seq,)))
        took_s = time.perf_counter() - started_s
        if result.status != "ok":
            raise RuntimeError(f"a step lost its keys at {result.lost}")
        return took_s

    def traced(self, steps: int) -> list[LayerTimes]:
        """So many steps, and the times of their layers."""
        times: list[LayerTimes] = []
        self._runner.times = times
        for _ in range(steps):
            self.step()
        self._runner.times = None
        return times

    def close(self) -> None:
        """End the links."""
        self._peers.close()


class Linked:
    """Peers of a debtor, linked beforehand. They are waited for as long as a machine may stand still that does much
    else: a step that gives one up is no measurement. counters: of all their links."""

    def __init__(self, members: Sequence[Member], transport: Transport, out_dtype: OutDtype = "float32") -> None:
        identity = LinkIdentity(instance_id="debtor", incarnation=1, compat=COMPAT)
        self.counters = Counters()
        self._links: list[TensorLink] = []
        self._creditors: dict[str, CreditorLink] = {}
        for member in members:
            assert member.data is not None
            hello = hello_to(identity, member.instance_id, member.incarnation)
            link = connect(member.data, hello, PATIENCE_S, transport)
            times = AnswerTimes(PATIENCE_S, shortest_s=PATIENCE_S)
            self._links.append(link)
            self._creditors[member.instance_id] = CreditorLink(
                link,
                member.instance_id,
                times,
                self.counters,
                out_dtype="float32" if link.within_host else out_dtype,
            )

    def creditor(self, instance_id: str, microbatch: int = 0) -> CreditorLink:
        """See Peers."""
        return self._creditors[instance_id]

    def fetch_link(self, instance_id: str, microbatch: int = 0) -> None:
        """Nothing is fetched."""
        return None

    def close(self) -> None:
        """End the links."""
        for link in self._links:
            link.close()
