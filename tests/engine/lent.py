"""A sequence whose rBlocks lie in three spans on two creditors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distkv.wire.messages.to_worker import Sampling, SeqStep
from tests.checkpoints import prompt_ids, reference_logits
from tests.engine.harness import GREEDY, Engine, seq_step, without


class Lent:
    """A prompt of 48 tokens with rBlocks 1-4 on x, 5-6 and 9 on y; rBlocks 0, 7, 8 and from 10 on are local. Without
    gaps: 0-3 on x, 4-5 and 6 on y, and all others are local."""

    def __init__(self, engine: Engine, name: str = "r", seed: int = 5, *, gaps: bool = True) -> None:
        self.engine, self.name, self.ids, self.gaps = engine, name, prompt_ids(50, seed), gaps
        whole = engine.table(60)
        engine.chunked_logits(self.ids[:48], [48], whole)
        for creditor in ("x", "y"):
            if creditor not in engine.peers.creditors:
                engine.add_creditor(creditor)
        self.remote = (
            engine.lend("x", whole, int(gaps), 4, index=2),
            engine.lend("y", whole, 5 if gaps else 4, 2),
            engine.lend("y", whole, 9 if gaps else 6, 1, index=1),
        )
        self.local = whole
        for span in self.remote:
            self.local = without(self.local, span.first_block, span.num_blocks)

    def step(
        self,
        start: int = 48,
        end: int = 50,
        *,
        attempt: int = 0,
        version: int = 0,
        sample: Sampling = GREEDY,
        **fields: Any,
    ) -> SeqStep:
        return seq_step(
            self.ids,
            start,
            end,
            self.local,
            name=self.name,
            attempt=attempt,
            version=version,
            remote=self.remote,
            sample=sample,
            **fields,
        )

    def expected(self, path: Path) -> int:
        return int(reference_logits(path, self.ids)[-1].argmax())
