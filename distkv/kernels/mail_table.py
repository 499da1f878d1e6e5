"""Mail with several creditors at once, by numbers that lie on the device: captured graphs read them at each replay.

What a lane is `mailbox` says. A table has a line for each creditor that a step may have: where its mailbox lies, under
which numbers its layers are posted, and which rows it is asked with. A line without rows is nobody's. The functions
here are what kernels do, on the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from distkv.kernels.mailbox import Lane


class MailField(IntEnum):
    """What stands where in a line, before the rows of queries. Addresses are those of a Lane's tensors, as the device
    reaches them, and of both lanes where they share them. FIRST: the number of the first layer. QUERY_ROWS,
    PARTIAL_ROWS: how many travel either way. FIRST_PARTIAL: where the partials go, a row. LIMIT_NS: for which they are
    waited for."""

    QUERY_BODY = 0
    QUERY_FLAG = 1
    QUERY_DONE = 2
    PARTIAL_BODY = 3
    PARTIAL_FLAG = 4
    HALT = 5
    STATUS = 6
    TIMES = 7
    FIRST = 8
    QUERY_ROWS = 9
    PARTIAL_ROWS = 10
    FIRST_PARTIAL = 11
    LIMIT_NS = 12


@dataclass(frozen=True, slots=True)
class MailTable:
    """numbers: int64 [C, len(MailField) + N], a line for each creditor: what MailField says, then up to N rows of the
    queries [N, Hq, D] of a layer, those that it is asked with."""

    numbers: Tensor


def addresses(queries: Lane, partials: Lane) -> list[int]:
    """The beginning of a line, up to TIMES: of the lanes of one end."""
    found = (
        queries.body, queries.flag, queries.done, partials.body, partials.flag, queries.halt, queries.status,
        queries.times,
    )  # fmt: skip
    return [tensor.data_ptr() for tensor in found]


def asked_lines(table: MailTable) -> Iterator[tuple[list[int], list[int]]]:
    """Of each creditor that is asked, what MailField says and its rows. On the host."""
    for line in table.numbers.tolist():
        if count := line[MailField.QUERY_ROWS]:
            fields, rows = line[: len(MailField)], line[len(MailField) :]
            yield fields, rows[:count]


def query_lane(fields: list[int], num_bytes: int) -> Lane:
    """The lane that queries of so many bytes are posted in; memory of this process."""
    return _lane(fields, fields[MailField.QUERY_FLAG], fields[MailField.QUERY_BODY], num_bytes)


def partial_lane(fields: list[int], num_bytes: int) -> Lane:
    """The lane that partials of so many bytes are taken from, likewise."""
    return _lane(fields, fields[MailField.PARTIAL_FLAG], fields[MailField.PARTIAL_BODY], num_bytes)


def _lane(fields: list[int], flag: int, body: int, num_bytes: int) -> Lane:
    return Lane(
        flag=_at(flag, 8, torch.int64),
        halt=_at(fields[MailField.HALT], 8, torch.int64),
        body=_at(body, num_bytes, torch.int32),
        status=_at(fields[MailField.STATUS], 8, torch.int64),
        done=_at(fields[MailField.QUERY_DONE], 4, torch.int32),
        times=_at(fields[MailField.TIMES], 16, torch.int64),
    )


def _at(address: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer((ctypes.c_char * num_bytes).from_address(address), dtype=dtype)
