"""Mail with several creditors at once, by kernels that read addresses and numbers where a table has them; see
distkv.kernels.mail_table. A launch has programs for as many words as a creditor may be sent, for each creditor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.mail_table import MailField, MailTable
from distkv.kernels.mailbox import MailStatus
from distkv.kernels.triton.mailbox import BLOCK_WORDS, LOOKS_PER_S, awaited, number_posted, words_taken

_FIELDS = tl.constexpr(len(MailField))
_QUERY_BODY = tl.constexpr(int(MailField.QUERY_BODY))
_QUERY_FLAG = tl.constexpr(int(MailField.QUERY_FLAG))
_QUERY_DONE = tl.constexpr(int(MailField.QUERY_DONE))
_PARTIAL_BODY = tl.constexpr(int(MailField.PARTIAL_BODY))
_PARTIAL_FLAG = tl.constexpr(int(MailField.PARTIAL_FLAG))
_HALT = tl.constexpr(int(MailField.HALT))
_STATUS = tl.constexpr(int(MailField.STATUS))
_TIMES = tl.constexpr(int(MailField.TIMES))
_FIRST = tl.constexpr(int(MailField.FIRST))
_QUERY_ROWS = tl.constexpr(int(MailField.QUERY_ROWS))
_PARTIAL_ROWS = tl.constexpr(int(MailField.PARTIAL_ROWS))
_FIRST_PARTIAL = tl.constexpr(int(MailField.FIRST_PARTIAL))
_LIMIT_NS = tl.constexpr(int(MailField.LIMIT_NS))

_OK = tl.constexpr(MailStatus.OK.value)
_LOOK_NS = tl.constexpr(1_000_000_000 // LOOKS_PER_S)


def post_rows(table: MailTable, layer: int, q: Tensor, *, timed: bool) -> None:
    """As Backend.post_all. timed: whether the device has a clock."""
    words = q.contiguous().view(-1).view(torch.int32)
    lines, length = table.numbers.shape
    _post_rows_kernel[triton.cdiv(len(words), BLOCK_WORDS), lines](
        words, table.numbers, length, layer, ROW_WORDS=len(words) // len(q), TIMED=timed, BLOCK=BLOCK_WORDS
    )


def take_rows(table: MailTable, layer: int, out: Tensor, lse: Tensor, *, timed: bool) -> None:
    """As Backend.take_all, likewise."""
    lines, length = table.numbers.shape
    _take_rows_kernel[triton.cdiv(out.numel() + lse.numel(), BLOCK_WORDS), lines](
        out.view(-1).view(torch.int32),
        lse.view(-1).view(torch.int32),
        table.numbers,
        length,
        layer,
        HEADS=lse.shape[1],
        D=out.shape[2],
        TIMED=timed,
        BLOCK=BLOCK_WORDS,
    )


@triton.jit(do_not_specialize=["length", "layer"], do_not_specialize_on_alignment=["table"])
def _post_rows_kernel(  # type: ignore[no-untyped-def]
    q, table, length, layer, ROW_WORDS: tl.constexpr, TIMED: tl.constexpr, BLOCK: tl.constexpr
):
    line = table + tl.program_id(1) * length
    words = tl.load(line + _QUERY_ROWS) * ROW_WORDS
    needed = tl.cdiv(words, BLOCK)
    if tl.program_id(0) >= needed:
        return
    is_ok = tl.load(tl.load(line + _STATUS).to(tl.pointer_type(tl.int64))) == _OK
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if is_ok:
        row = tl.load(line + _FIELDS + place // ROW_WORDS, mask=place < words, other=0)
        value = tl.load(q + row * ROW_WORDS + place % ROW_WORDS, mask=place < words, other=0)
        body = tl.multiple_of(tl.load(line + _QUERY_BODY), 16).to(tl.pointer_type(tl.int32))
        tl.store(body + place, value, mask=place < words)
    done = tl.load(line + _QUERY_DONE).to(tl.pointer_type(tl.int32))
    flag = tl.load(line + _QUERY_FLAG).to(tl.pointer_type(tl.int64))
    times = tl.load(line + _TIMES).to(tl.pointer_type(tl.int64))
    number_posted(flag, done, times, tl.load(line + _FIRST) + layer, is_ok, needed, TIMED)


@triton.jit(do_not_specialize=["length", "layer"], do_not_specialize_on_alignment=["table"])
def _take_rows_kernel(  # type: ignore[no-untyped-def]
    out,
    lse,
    table,
    length,
    layer,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    TIMED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = table + tl.program_id(1) * length
    rows = tl.load(line + _PARTIAL_ROWS)
    words = rows * (HEADS * (D + 1))
    if tl.program_id(0) >= tl.cdiv(words, BLOCK):
        return
    status = tl.load(line + _STATUS).to(tl.pointer_type(tl.int64))
    if tl.load(status) == _OK:
        number = tl.load(line + _FIRST) + layer
        limit = tl.load(line + _LIMIT_NS)
        if not TIMED:
            limit = limit // _LOOK_NS
        flag = tl.load(line + _PARTIAL_FLAG).to(tl.pointer_type(tl.int64))
        halt = tl.load(line + _HALT).to(tl.pointer_type(tl.int64))
        is_there, spent = awaited(flag, halt, status, number, limit, TIMED)
        if is_there:
            first = tl.load(line + _FIRST_PARTIAL) * HEADS
            body = tl.multiple_of(tl.load(line + _PARTIAL_BODY), 16).to(tl.pointer_type(tl.int32))
            times = tl.load(line + _TIMES).to(tl.pointer_type(tl.int64))
            words_taken(body, out + first * D, lse + first, times, rows * HEADS * D, words, spent, TIMED, BLOCK)
