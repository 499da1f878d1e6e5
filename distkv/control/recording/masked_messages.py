"""Messages without what users wrote and got: token ids, text, probabilities, and checksums of what was made of them."""

from __future__ import annotations

from msgspec.structs import replace

from distkv.types import TokenLogprobs
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.envelope import GManagerAnswer, PeerAnswer, PeerRequest, ToClient, ToWorker

TOKEN, END = 0, 1
"""All ids of a recording: any token, and one with which an output ended before its greatest length."""
_LOGPROBS = TokenLogprobs(TOKEN, 0.0, 1)


def result(message: fw.SeqResult, is_end: bool) -> fw.SeqResult:
    """is_end: the output ended with its token, before its greatest length."""
    token = None if message.token is None else END if is_end else TOKEN
    return replace(
        message,
        token=token,
        logprobs=None if message.logprobs is None else _LOGPROBS,
        prompt_logprobs=(_LOGPROBS,) * len(message.prompt_logprobs),
    )


def checksummed(message: fw.Checksummed) -> fw.Checksummed:
    """As many."""
    return replace(message, checksums=bytes(len(message.checksums)))


def peer_request(message: PeerRequest) -> PeerRequest:
    """What a debtor says to a creditor."""
    if isinstance(message, tr.BlocksReady):
        return replace(message, blocks=tuple(replace(block, checksum=0) for block in message.blocks))
    return message


def to_worker(message: ToWorker) -> ToWorker:
    """What an rManager says to its worker."""
    match message:
        case tw.Step():
            return replace(message, seqs=tuple(map(_seq_step, message.seqs)))
        case tw.Pull():
            return replace(message, checksums=bytes(len(message.checksums)))
        case _:
            return message


def _seq_step(step: tw.SeqStep) -> tw.SeqStep:
    sample, wanted = step.sample, step.prompt_logprobs
    if sample is not None:
        sample = replace(sample, logit_bias={}, allowed_token_ids=(), forbidden_token_ids=(), bad_words=())
    if wanted is not None:
        wanted = replace(wanted, token_ids=bytes(len(wanted.token_ids)))
    return replace(step, tokens=b"", sample=sample, prompt_logprobs=wanted)


def answer(message: ToClient | PeerAnswer | GManagerAnswer) -> ToClient | PeerAnswer | GManagerAnswer:
    """What goes back along a route."""
    if not isinstance(message, tc.TokenChunk):
        return message
    news = message.prompt_logprobs
    return replace(
        message,
        token_ids=(TOKEN,) * len(message.token_ids),
        text="",
        stop_reason=None,
        logprobs=None if message.logprobs is None else (_LOGPROBS,) * len(message.logprobs),
        prompt_logprobs=None if news is None else tuple(None if one is None else _LOGPROBS for one in news),
    )


def is_only_text(chunk: tc.TokenChunk) -> bool:
    """Whether there is nothing but text in it, which was held back until its request ended otherwise."""
    return not chunk.token_ids and chunk.finish_reason is None and chunk.prompt_logprobs is None
