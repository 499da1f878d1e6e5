"""How long a request would take on an instance: until its first token, and for each token after it.

By the profile of the instance where it has one, else by what its heartbeats say that steps and prompts took there. What
is not known of one instance, or differs little, is taken to be as it is with the others: what steps take depends on
what was served, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

import msgspec

from distkv.control.cluster.policy.interface import InstanceView
from distkv.wire.messages.to_gmanager import Locate

USUAL_BASE_S, USUAL_ROW_S, USUAL_PROMPT_TOKEN_S, USUAL_OUTPUT_TOKENS = 0.01, 0.001, 0.0005, 128
"""While no instance has told its own."""
ALIKE = 1.4
"""Times that differ by less are those of equal machines."""
MIXED = 2.0
"""Prefill beside decodes takes so many times as long: steps may be twice as long as those of the decodes alone."""
CHUNK_TOKENS = 256
"""What a token of the queue takes is that of one in such a chunk."""
RECLAIM_S = 2.0
"""Until lent memory is back for an own request."""
BORROW_S = 5.0
"""What it costs to need memory of others: waiting for it, attention elsewhere, and what that takes from them."""


class Usual(msgspec.Struct, frozen=True):
    """What is taken for true of an instance that has not told, and which outputs it is expected to get."""

    base_s: float
    row_s: float
    prompt_token_s: float
    output_tokens: int

    @classmethod
    def of(cls, views: Iterable[InstanceView]) -> Usual:
        """The middle of those who told."""
        known = list(views)
        steps = [(view.decode_base_s, view.decode_row_s) for view in known if view.decode_base_s or view.decode_row_s]
        prompts = [view.prompt_token_s for view in known if view.prompt_token_s]
        outputs = [view.output_tokens for view in known if view.output_tokens]
        return cls(
            median(base for base, _ in steps) if steps else USUAL_BASE_S,
            median(row for _, row in steps) if steps else USUAL_ROW_S,
            median(prompts) if prompts else USUAL_PROMPT_TOKEN_S,
            round(median(outputs)) if outputs else USUAL_OUTPUT_TOKENS,
        )


class Prediction(msgspec.Struct, frozen=True):
    """wait_s: until it begins, for memory and for a place in the batch. first_token_s: from now, with that.
    token_s: for each token after the first. tokens: how many these are expected to be."""

    wait_s: float
    first_token_s: float
    token_s: float
    tokens: int

    @property
    def total_s(self) -> float:
        """Until the request has ended."""
        return self.first_token_s + self.tokens * self.token_s


def predict(request: Locate, view: InstanceView, usual: Usual) -> Prediction:
    """Of a request that would be sent to an instance now."""
    prompt = request.prompt_tokens or request.num_tokens
    outputs = usual.output_tokens
    output = min(request.num_tokens - prompt, outputs) if request.num_tokens > prompt else 0
    decodes = min(view.load - view.waiting + 1, view.max_num_seqs or view.load + 1)
    block_tokens = max(1, view.block_tokens)
    goes_by = view.goes_by(view.blocks_for(prompt))
    queued = view.prefill_tokens
    if goes_by:  # the prompts of those that wait are computed after it
        queued = max(0, queued - view.waiting_blocks * block_tokens)
    if (model := view.model) is None:
        own_s = view.decode_base_s + view.decode_row_s * decodes
        token_s = _unlike(own_s, usual.base_s + usual.row_s * decodes)
        prefill_s = (queued + prompt) * _unlike(view.prompt_token_s, usual.prompt_token_s)
    else:
        context = view.context_tokens + prompt
        borrowed = min(view.borrowed_blocks * block_tokens, context)
        served = view.lent_blocks * block_tokens
        token_s = model.step_s(decodes, context, remote_tokens=borrowed, served_tokens=served)
        queued_s = queued * model.prefill_s(CHUNK_TOKENS) / CHUNK_TOKENS
        prefill_s = queued_s + model.prefill_s(prompt)
    if decodes > 1:
        prefill_s *= MIXED
    end_s = outputs * token_s
    memory_s = _memory_s(prompt, output, outputs, request, view, end_s, goes_by=goes_by)
    wait_s = max(_place_s(view, end_s, goes_by=goes_by), memory_s)
    return Prediction(wait_s, wait_s + prefill_s, token_s, output)


def _unlike(own_s: float, usual_s: float) -> float:
    """What an instance told, if that is known and differs; else what is usual."""
    return own_s if own_s and not usual_s / ALIKE <= own_s <= usual_s * ALIKE else usual_s


def _place_s(view: InstanceView, end_s: float, *, goes_by: bool) -> float:
    """Seconds until it has a place in the batch, if those that run end after `end_s`."""
    if not view.max_num_seqs:
        return 0.0
    load = view.load - view.waiting if goes_by else view.load
    return max(0, load + 1 - view.max_num_seqs) * end_s / view.max_num_seqs


def _memory_s(
    prompt: int, output: int, outputs: int, request: Locate, view: InstanceView, end_s: float, *, goes_by: bool
) -> float:
    """Seconds until there is memory for it, and for those that wait there and run there to get their outputs. What is
    lacking comes free as those that run end, each after `end_s`. What the instance does not have at all is borrowed,
    the less the more is free. Where requests wait, what is free is kept for them, or too little; but what fits goes by
    those that need more than is free. Those that are on their way count as those that run: else who was sent a burst
    since its heartbeat would seem to get memory back as slowly as it had little taken then, and another one whose
    heartbeat knows the burst many times as fast."""
    block_tokens = max(1, view.block_tokens)
    own, need = view.total_blocks * block_tokens, prompt + output
    before = view.waiting_blocks * block_tokens + view.waiting * outputs
    if need > own:
        remote_share = 1 - min(need, max(0, view.room_tokens)) / need
        lack, borrow_s = before, BORROW_S * (1 + remote_share)
    else:
        room = view.room_tokens - view.growing_blocks * block_tokens if goes_by or not view.waiting else 0
        lack = need - room + (0 if goes_by else before)
        borrow_s = BORROW_S * _beyond(own - prompt, outputs, request.num_tokens - prompt)
    if lack <= 0:
        return borrow_s
    taken = own - max(0, view.room_tokens) - view.lent_blocks * block_tokens
    held = max(view.context_tokens, taken) if view.load > view.waiting else 0
    return borrow_s + (lack * end_s / held if held > 0 else RECLAIM_S)


def _beyond(left: int, mean: int, most: int) -> float:
    """How likely an output gets longer than `left`: as of those that are as likely to end with each token."""
    if left <= 0:
        return 1.0
    return 0.0 if most <= left else math.exp(-left / max(1, mean))
