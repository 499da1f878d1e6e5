"""Samples of a cluster's statuses: throughput between two of them, and the loans in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_client import ClusterState, Status


class Sample(msgspec.Struct, frozen=True):
    """The status of every instance at one time, on any one clock."""

    taken_s: float
    statuses: tuple[Status, ...] = ()


class Rates(msgspec.Struct, frozen=True):
    """Tokens per second: of prompts that were computed, and generated."""

    prompt: float
    generated: float


class Loan(msgspec.Struct, frozen=True):
    """KV of a debtor's requests that lies at a creditor."""

    creditor: str
    debtor: str
    tokens: int
    blocks: int
    requests: int


def rates(before: Sample, now: Sample) -> Rates | None:
    """Throughput of the instances that answered both times; None if no time went by between them.

    One that restarted in between counts from its start.
    """
    elapsed_s = now.taken_s - before.taken_s
    if elapsed_s <= 0:
        return None
    earlier, prompt, generated = _counters(before), 0, 0
    for name, counters in _counters(now).items():
        then = earlier.get(name)
        if then is None:
            continue
        if counters.prompt_tokens < then.prompt_tokens or counters.generation_tokens < then.generation_tokens:
            then = Counters()
        prompt += counters.prompt_tokens - then.prompt_tokens
        generated += counters.generation_tokens - then.generation_tokens
    return Rates(prompt / elapsed_s, generated / elapsed_s)


def _counters(sample: Sample) -> Mapping[str, Counters]:
    instances = (status.instance for status in sample.statuses)
    return {one.instance_id: one.counters for one in instances if one.answers}


def loans(statuses: Iterable[Status], cluster: ClusterState | None = None) -> list[Loan]:
    """Who lends to whom, by creditor and debtor, as the debtors' requests say; how many rBlocks, as the gManager says
    if there is one: that counts what is granted and not filled yet, and what the requests shown do not hold."""
    found: dict[tuple[str, str], Loan] = {}
    for status in statuses:
        block_tokens = max(1, status.instance.block_tokens)
        for request in status.requests:
            counted: set[str] = set()
            for span in request.spans:
                if span.instance_id == request.instance_id:
                    continue
                pair = span.instance_id, request.instance_id
                known = found.get(pair, Loan(*pair, tokens=0, blocks=0, requests=0))
                found[pair] = msgspec.structs.replace(
                    known,
                    tokens=known.tokens + span.num_tokens,
                    blocks=known.blocks + -(-span.num_tokens // block_tokens),
                    requests=known.requests + (span.instance_id not in counted),
                )
                counted.add(span.instance_id)
    for debt in () if cluster is None else cluster.debts:
        pair = debt.creditor_id, debt.debtor_id
        known = found.get(pair, Loan(*pair, tokens=0, blocks=0, requests=0))
        found[pair] = msgspec.structs.replace(known, blocks=debt.num_blocks)
    return [found[pair] for pair in sorted(found)]
