"""Modelled engines that decode the same batches step after step: no rManager decides anything meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from distkv.checksums import pack
from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.engine.around import Around
from distkv.sim.timed.engine.engine import Engine, Reply
from distkv.sim.timed.engine.step_work import StepTimes
from distkv.sim.timed.links import Links
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.profile import Profile

WARM_UP_SHARE = 0.2
"""Of the time, before tokens are counted: engines that begin at once fall out of step by then."""
EPOCH = Epoch(1, 1)


class Decodes(msgspec.Struct, frozen=True):
    """Sequences of an engine, that many of `length` tokens each. lent: of the first, creditors and how many of its
    rBlocks lie there."""

    count: int
    length: int
    lent: tuple[tuple[int, int], ...] = ()


class Moves(msgspec.Struct, frozen=True):
    """With each step of an engine `blocks` full rBlocks go to the engine `target`."""

    blocks: int
    target: int


class ClosedLoop:
    """Engines of one profile; hosts: where each is. Each begins its next step as soon as one has ended."""

    def __init__(self, profile: Profile, hosts: Sequence[str], *, network_shared: bool = False) -> None:
        self._agenda = Agenda()
        links = Links(profile, self._agenda, network_shared=network_shared)
        around = Around(self._agenda, links)
        times = StepTimes(profile)
        self._engines: list[Engine] = []
        self._steps: list[tw.Step | None] = [None] * len(hosts)
        self._moves: list[Moves | None] = [None] * len(hosts)
        self._tokens = [0] * len(hosts)
        self._pulls = 0
        for index, host in enumerate(hosts):
            name = self._name(index)
            links.place(name, host)
            self._engines.append(Engine(name, 1, host, times, around, partial(self._on_reply, index)))

    def tokens_per_s(
        self, batches: Sequence[Sequence[Decodes]], for_s: float, moves: Sequence[Moves | None] = ()
    ) -> tuple[float, ...]:
        """What each engine generates, by its batch and what it moves meanwhile."""
        self._moves = [*moves, *[None] * (len(batches) - len(moves))]
        for index, batch in enumerate(batches):
            seqs = [seq for part, decodes in enumerate(batch) for seq in self._seqs(f"{index}-{part}", decodes)]
            self._steps[index] = tw.Step(step_id=1, seqs=tuple(seqs)) if seqs else None
        for index in range(len(batches)):
            self._begin(index)
        warm_s = WARM_UP_SHARE * for_s
        self._agenda.run(warm_s)
        before = list(self._tokens)
        self._agenda.run(for_s)
        return tuple((now - then) / (for_s - warm_s) for now, then in zip(self._tokens, before, strict=True))

    def _seqs(self, name: str, decodes: Decodes) -> list[tw.SeqStep]:
        sampling = tw.Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
        found: list[tw.SeqStep] = []
        for number in range(decodes.count):
            remote = () if number else tuple(self._lend(f"{name}-{to}", to, blocks) for to, blocks in decodes.lent)
            found.append(
                tw.SeqStep(
                    request_id=f"{name}-{number}",
                    version=0,
                    attempt=0,
                    start=decodes.length - 1,
                    end=decodes.length,
                    tokens=b"",
                    local=(),
                    remote=remote,
                    sample=sampling,
                )
            )
        return found

    def _lend(self, span_id: str, creditor: int, blocks: int) -> tw.RemoteSpan:
        span = SpanRef(span_id=span_id, epoch=EPOCH)
        self._engines[creditor].receive(tw.Grant(span=span, slots=tuple(range(blocks))))
        return tw.RemoteSpan(instance_id=self._name(creditor), span=span, index=0, first_block=0, num_blocks=blocks)

    def _on_reply(self, index: int, reply: Reply) -> None:
        if not isinstance(reply, fw.StepResult):
            return
        self._tokens[index] += len(reply.results)
        if (move := self._moves[index]) is not None:
            self._pulls += 1
            pull = tw.Pull(
                pull_id=self._pulls,
                source_id=self._name(index),
                source_incarnation=1,
                source_slots=tuple(range(move.blocks)),
                slots=tuple(range(move.blocks)),
                checksums=pack((0,) * move.blocks),
            )
            self._engines[move.target].receive(pull)
        self._begin(index)

    def _begin(self, index: int) -> None:
        if (step := self._steps[index]) is not None:
            self._engines[index].receive(step)

    @staticmethod
    def _name(index: int) -> str:
        return f"i{index}"
