"""Statuses made by hand."""

from __future__ import annotations

from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_client import (
    InstanceStatus,
    RequestStatus,
    SlotCounts,
    SpanStatus,
    Status,
)


def request(name: str, at: str, *spans: tuple[str, int]) -> RequestStatus:
    """A request whose KV lies in `spans` of (instance, tokens), one after the other."""
    placed, first = [], 0
    for instance, tokens in spans:
        placed.append(SpanStatus(instance_id=instance, first_token=first, num_tokens=tokens))
        first += tokens
    return RequestStatus(request_id=name, instance_id=at, num_tokens=first, spans=tuple(placed))


def status(
    name: str,
    *,
    state: str = "ready",
    blocks: tuple[int, int, int, int] = (32, 0, 0, 0),
    prompt: int = 0,
    generated: int = 0,
    running: int = 0,
    waiting: int = 0,
    borrowed: int = 0,
    requests: tuple[RequestStatus, ...] = (),
    computes: str = "",
) -> Status:
    """One instance's; `blocks` are free, local, lent, reserved."""
    free, local, lent, reserved = blocks
    return Status(
        instance=InstanceStatus(
            instance_id=name,
            state=state,
            pid=1,
            worker_pid=2,
            block_tokens=16,
            blocks=SlotCounts(total=sum(blocks), free=free, local=local, lent=lent, reserved=reserved),
            borrowed_blocks=borrowed,
            running=running,
            waiting=waiting,
            counters=Counters(prompt_tokens=prompt, generation_tokens=generated),
            computes=computes,
        ),
        requests=requests,
    )
