"""Mail between two devices through memory that both of them reach: no host stands between a body and who waits for it.

A lane carries bodies one way, one after the other, each under a number that is greater than the one before. Who posts
writes the body and then the number; who takes waits for the number and then reads. The next body may be posted when
this one was taken, which the other lane of the mailbox says: queries are posted when the partials before were taken.
What a mailbox looks like is in distkv.engine.attention.mailbox; the functions here are what kernels do, on the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

SPOILT = 2**62
"""The number under which nothing comes: whoever posts has failed. Greater than any other."""

_PAUSE_S = 20e-6


class MailStatus(IntEnum):
    """What became of one end's mail. LATE: a number did not come in time. HALTED: a host has ended it. SPOILT: the
    other end has failed, or a number came that is not the one awaited."""

    OK = 0
    LATE = 1
    HALTED = 2
    SPOILT = 3


@dataclass(frozen=True, slots=True)
class Lane:
    """One end's view of a lane.

    flag: int64 [1], the number of the newest body. halt: int64 [1], anything but 0 ends all waits, at both ends. body:
    int32 [W]. These lie in memory that both ends reach. On the own device: status, int64 [1], a MailStatus, of both
    lanes of this end, and done, int32 [1], 0 between two calls; times, int64 [2], of this end where its device has a
    clock, in ns: how long it has waited for what it took, and computed between what it took and what it then posted.

    Once the status is not OK nothing is taken or posted any more, and whoever would be waited for spoils its lane.
    """

    flag: Tensor
    halt: Tensor
    body: Tensor
    status: Tensor
    done: Tensor
    times: Tensor


def words_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Their bytes as int32 [words]; contiguous, of whole words."""
    return [tensor.view(-1).view(torch.int32) for tensor in tensors]


def post(lane: Lane, number: int, *tensors: Tensor) -> None:
    """Write tensors, one or two, into the body back to back, then the number.

    On the host; other processors see the stores in this order where the machine keeps it, as x86 does.
    """
    if int(lane.status) != MailStatus.OK:
        lane.flag.fill_(SPOILT)
        return
    end = 0
    for words in words_of(tensors):
        start, end = end, end + len(words)
        lane.body[start:end].copy_(words)
    lane.times[1] += time.perf_counter_ns()
    lane.flag.fill_(number)


def take(lane: Lane, number: int, *tensors: Tensor, limit_s: float) -> None:
    """Wait for the number, `limit_s` at most, and read the body into tensors, one or two. If it does not come they are
    left as they are, and the status says why."""
    if int(lane.status) == MailStatus.OK:
        begun_ns = time.perf_counter_ns()
        lane.status.fill_(_awaited(lane, number, time.monotonic() + limit_s))
        lane.times[0] += time.perf_counter_ns() - begun_ns
    if int(lane.status) != MailStatus.OK:
        return
    end = 0
    for words in words_of(tensors):
        start, end = end, end + len(words)
        words.copy_(lane.body[start:end])
    lane.times[1] -= time.perf_counter_ns()


def _awaited(lane: Lane, number: int, deadline_s: float) -> MailStatus:
    while (seen := int(lane.flag)) < number:
        if int(lane.halt):
            return MailStatus.HALTED
        if time.monotonic() > deadline_s:
            return MailStatus.LATE
        time.sleep(_PAUSE_S)
    return MailStatus.OK if seen == number else MailStatus.SPOILT
