"""A step cut into microbatches, so that one computes while the other waits for partials of peers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distkv.engine.device.device import Device
from distkv.engine.step.batch import PlannedSeq
from distkv.token_ids import ID_BYTES
from distkv.wire.messages.to_worker import PromptLogprobs

ROWS_WORTH_IT = 256
"""On a GPU: half of them still keep the matrix units busy. Fewer would read the weights twice for nothing."""


def microbatches(planned: Sequence[PlannedSeq], device: Device, number: int | None = None) -> list[list[PlannedSeq]]:
    """number: 2 cuts every step that has keys on peers, 1 none, None where it pays on this device."""
    if number == 1 or not any(seq.step.remote for seq in planned):
        return [list(planned)]
    if number is None and not (device.is_async and sum(len(seq.tokens) for seq in planned) >= ROWS_WORTH_IT):
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
