"""What a step takes longer for rBlocks elsewhere, by a profile."""

from __future__ import annotations

from distkv.control.rmanager.state import RManagerState


def profiled_wait_s(state: RManagerState, batch: int, context_tokens: int, remote_blocks: int) -> float | None:
    """Seconds that a step of `batch` decodes over so many tokens in all is longer where so many of their rBlocks lie at
    a creditor of the host; None without a profile."""
    model = state.performance
    if model is None:
        return None
    remote = min(context_tokens, remote_blocks * state.settings.block_tokens)
    return max(0.0, model.step_s(batch, context_tokens, remote_tokens=remote) - model.step_s(batch, context_tokens))
