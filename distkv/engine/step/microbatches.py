"""A step cut into microbatches, so that one computes while the other waits for partials of peers."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from distkv.engine.step.batch import PlannedSeq
from distkv.token_ids import ID_BYTES
from distkv.wire.messages.to_worker import PromptLogprobs

RIDGE_ROWS = 256
"""Of a product with weights on a GPU: fewer take as long, which is what reading the weights takes."""
_NEWEST, _UNCUT_EVERY = 3, 17


class Cuts:
    """Whether to cut steps of so many rows on a GPU, from what uncut ones took: used by one thread.

    Two halves compute for longer than the whole where they have fewer rows than RIDGE_ROWS each, for each reads the
    weights. What they gain is the time that one waits for partials, as far as the other computes meanwhile. Sizes are
    told apart by powers of 2. Every 17th step of a size is left whole, for waits change.
    """

    def __init__(self) -> None:
        self._took: dict[int, deque[tuple[float, float]]] = {}
        self._asked: Counter[int] = Counter()

    def pay(self, num_rows: int) -> bool:
        """For the next step of so many rows."""
        size, share = num_rows.bit_length(), num_rows / RIDGE_ROWS
        if share <= 1 or size not in self._took:
            return False
        self._asked[size] += 1
        if self._asked[size] % _UNCUT_EVERY == 0:
            return False
        computed_s, waited_s = map(statistics.median, zip(*self._took[size], strict=True))
        half_s = max(1.0, share / 2) / share * computed_s
        return bool(min(waited_s, half_s) > 2 * half_s - computed_s)

    def took(self, num_rows: int, computed_s: float, waited_s: float) -> None:
        """An uncut step with keys at creditors was done. waited_s: for partials and keys; computed_s: the rest."""
        self._took.setdefault(num_rows.bit_length(), deque(maxlen=_NEWEST)).append((computed_s, waited_s))


def microbatches(planned: Sequence[PlannedSeq], number: int | None, cuts: Cuts | None) -> list[list[PlannedSeq]]:
    """number: 2 cuts every step that has keys on peers, 1 none, None where `cuts` say that it pays; never without."""
    if number == 1 or not any(seq.step.remote for seq in planned):
        return [list(planned)]
    if number is None and not (cuts is not None and cuts.pay(sum(len(seq.tokens) for seq in planned))):
        return [list(planned)]
    return cut_in_two(planned)


def cut_in_two(planned: Sequence[PlannedSeq]) -> list[list[PlannedSeq]]:
    """Two microbatches of about as many rows, the first before the second; a sequence is cut if need be. One if there
    is but one row."""
    num_rows = sum(len(seq.tokens) for seq in planned)
    first: list[PlannedSeq] = []
    second: list[PlannedSeq] = []
    left = num_rows // 2
    for seq in planned:
        if len(seq.tokens) <= left:
            first.append(seq)
        elif left:
            before, after = _cut(seq, left)
            first.append(before)
            second.append(after)
        else:
            second.append(seq)
        left -= min(left, len(seq.tokens))
    return [microbatch for microbatch in (first, second) if microbatch]


def _cut(seq: PlannedSeq, num_rows: int) -> tuple[PlannedSeq, PlannedSeq]:
    """Two chunks, one after the other. A token is sampled by the second."""
    step, tokens = seq.step, seq.tokens
    middle = step.start + num_rows
    before, after = _cut_logprobs(step.prompt_logprobs, middle)
    first = msgspec.structs.replace(step, end=middle, sample=None, prompt_logprobs=before)
    second = msgspec.structs.replace(step, start=middle, prompt_logprobs=after)
    return PlannedSeq(first, tokens[:num_rows], seq.lost), PlannedSeq(second, tokens[num_rows:], seq.lost)


def _cut_logprobs(wanted: PromptLogprobs | None, middle: int) -> tuple[PromptLogprobs | None, PromptLogprobs | None]:
    """Tokens at positions up to `middle` are predicted by rows before it."""
    if wanted is None:
        return None, None
    count = middle + 1 - wanted.first
    if count <= 0:
        return None, wanted
    before, after = wanted.token_ids[: count * ID_BYTES], wanted.token_ids[count * ID_BYTES :]
    return (
        msgspec.structs.replace(wanted, token_ids=before),
        msgspec.structs.replace(wanted, first=middle + 1, token_ids=after) if after else None,
    )
