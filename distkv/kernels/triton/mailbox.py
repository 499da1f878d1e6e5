"""Mail between two devices, by kernels; see distkv.kernels.mailbox.

Each program waits by itself and then moves its share of the body, so none waits for another of the same launch. A wait
is bounded by the device's clock, or where there is none, in Triton's interpreter, by looks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from distkv.kernels.mailbox import SPOILT, Lane, MailStatus, words_of

BLOCK_WORDS = 4096
"""Of one program: 128 threads with eight times 16 bytes each."""

LOOKS_PER_S = 20_000
"""About as many as the interpreter takes."""

_OK = tl.constexpr(MailStatus.OK.value)
_LATE = tl.constexpr(MailStatus.LATE.value)
_HALTED = tl.constexpr(MailStatus.HALTED.value)
_SPOILT = tl.constexpr(MailStatus.SPOILT.value)
_SPOILT_NUMBER = tl.constexpr(SPOILT)


def post_mail(lane: Lane, number: int, *tensors: Tensor, timed: bool) -> None:
    """As distkv.kernels.mailbox.post. timed: whether the device has a clock."""
    first, second = _pair(tensors)
    words = len(first) + len(second)
    _post_kernel[(max(1, triton.cdiv(words, BLOCK_WORDS)),)](
        first,
        second,
        lane.body,
        lane.flag,
        lane.status,
        lane.done,
        lane.times,
        len(first),
        words,
        number,
        TIMED=timed,
        BLOCK=BLOCK_WORDS,
    )


def take_mail(lane: Lane, number: int, *tensors: Tensor, limit_s: float, timed: bool) -> None:
    """As distkv.kernels.mailbox.take, likewise."""
    first, second = _pair(tensors)
    words = len(first) + len(second)
    _take_kernel[(max(1, triton.cdiv(words, BLOCK_WORDS)),)](
        first,
        second,
        lane.body,
        lane.flag,
        lane.halt,
        lane.status,
        lane.times,
        len(first),
        words,
        number,
        int(limit_s * (1e9 if timed else LOOKS_PER_S)),
        TIMED=timed,
        BLOCK=BLOCK_WORDS,
    )


def _pair(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    first, *rest = words_of(tensors)
    return first, rest[0] if rest else first[:0]


@triton.jit(
    do_not_specialize=["words_first", "words", "number"],
    do_not_specialize_on_alignment=["second", "flag", "status", "done", "times"],
)
def _post_kernel(  # type: ignore[no-untyped-def]
    first,
    second,
    body,
    flag,
    status,
    done,
    times,
    words_first,
    words,
    number: tl.int64,
    TIMED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The program that is the last to have written writes the number."""
    is_ok = tl.load(status) == _OK
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_first, is_word = place < words_first, place < words
    if is_ok:
        one = tl.load(first + place, mask=is_first & is_word, other=0)
        two = tl.load(second + place - words_first, mask=is_word & (place >= words_first), other=0)
        tl.store(body + place, tl.where(is_first, one, two), mask=is_word)
    number_posted(flag, done, times, number, is_ok, tl.num_programs(0), TIMED)


@triton.jit(
    do_not_specialize=["words_first", "words", "number", "limit"],
    do_not_specialize_on_alignment=["second", "flag", "halt", "status", "times"],
)
def _take_kernel(  # type: ignore[no-untyped-def]
    first,
    second,
    body,
    flag,
    halt,
    status,
    times,
    words_first,
    words,
    number: tl.int64,
    limit: tl.int64,
    TIMED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The flag is only ever loaded here: an atomic operation on memory of the host may write back what it read, over a
    number that came meanwhile."""
    if tl.load(status) == _OK:
        is_there, spent = awaited(flag, halt, status, number, limit, TIMED)
        if is_there:
            words_taken(body, first, second, times, words_first, words, spent, TIMED, BLOCK)


@triton.jit
def number_posted(flag, done, times, number, is_ok, programs, TIMED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number, by the last of so many programs that have stored their part of the body."""
    # All threads have stored before one counts, and who counts last sees what all have stored.
    tl.debug_barrier()
    if tl.atomic_add(done, 1, sem="acq_rel", scope="sys") == programs - 1:
        tl.store(done, 0)
        if TIMED:
            tl.store(times + 1, tl.load(times + 1) + cuda.globaltimer().to(tl.int64))
        tl.atomic_xchg(flag, tl.where(is_ok, number.to(tl.int64), _SPOILT_NUMBER), sem="release", scope="sys")


@triton.jit
def awaited(flag, halt, status, number, limit, TIMED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether the number came, and what was waited for it; the status says why if not."""
    seen = tl.load(flag, volatile=True)
    halted = tl.load(halt, volatile=True)
    spent = tl.zeros((), tl.int64)
    if TIMED:
        begun = cuda.globaltimer().to(tl.int64)
    while (seen < number) & (halted == 0) & (spent < limit):
        seen = tl.load(flag, volatile=True)
        halted = tl.load(halt, volatile=True)
        if TIMED:
            spent = cuda.globaltimer().to(tl.int64) - begun
        else:
            spent += 1
    if seen != number:
        tl.store(status, tl.where(seen > number, _SPOILT, tl.where(halted != 0, _HALTED, _LATE)).to(tl.int64))
    return seen == number, spent


@triton.jit
def words_taken(  # type: ignore[no-untyped-def]
    body, first, second, times, words_first, words, spent, TIMED: tl.constexpr, BLOCK: tl.constexpr
):
    """A program's share of a body whose number was seen."""
    # No thread reads the body before the number was seen; volatile, so from no cache either.
    tl.debug_barrier()
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_first, is_word = place < words_first, place < words
    value = tl.load(body + place, mask=is_word, other=0, volatile=True)
    tl.store(first + place, value, mask=is_first & is_word)
    tl.store(second + place - words_first, value, mask=is_word & (place >= words_first))
    if TIMED and tl.program_id(0) == 0:
        tl.store(times, tl.load(times) + spent)
        tl.store(times + 1, tl.load(times + 1) - cuda.globaltimer().to(tl.int64))
