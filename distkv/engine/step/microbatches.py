"""A step cut in two, so that one half computes while the other waits for partials of peers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distkv.wire.messages.to_worker import PromptLogprobs, SeqStep

Planned = tuple[SeqStep, Sequence[int]]
"""A sequence of a step, and all its token ids."""

ROWS_WORTH_IT = 256
"""On a GPU: half of them still keep the matrix units busy. Fewer would read the weights twice for nothing."""


def halves(planned: Sequence[Planned]) -> list[list[Planned]]:
    """Two halves of about as many rows, the first before the second; a sequence is cut if need be. One part if there is
    but one row."""
    num_rows = sum(len(tokens) for _, tokens in planned)
    first: list[Planned] = []
    second: list[Planned] = []
    left = num_rows // 2
    for step, tokens in planned:
        if len(tokens) <= left:
            first.append((step, tokens))
        elif left:
            before, after = _cut(step, tokens, left)
            first.append(before)
            second.append(after)
        else:
            second.append((step, tokens))
        left -= min(left, len(tokens))
    return [half for half in (first, second) if half]


def _cut(step: SeqStep, tokens: Sequence[int], num_rows: int) -> tuple[Planned, Planned]:
    """Two chunks, one after the other. A token is sampled by the second."""
    middle = step.start + num_rows
    before, after = _cut_logprobs(step.prompt_logprobs, middle)
    return (
        (msgspec.structs.replace(step, end=middle, sample=None, prompt_logprobs=before), tokens[:num_rows]),
        (msgspec.structs.replace(step, start=middle, prompt_logprobs=after), tokens[num_rows:]),
    )


def _cut_logprobs(wanted: PromptLogprobs | None, middle: int) -> tuple[PromptLogprobs | None, PromptLogprobs | None]:
    """Tokens at positions up to `middle` are predicted by rows before it."""
    if wanted is None:
        return None, None
    count = middle + 1 - wanted.first
    if count <= 0:
        return None, wanted
    before, after = wanted.token_ids[:count], wanted.token_ids[count:]
    return (
        msgspec.structs.replace(wanted, token_ids=before),
        msgspec.structs.replace(wanted, first=middle + 1, token_ids=after) if after else None,
    )
