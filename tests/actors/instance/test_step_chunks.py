from __future__ import annotations

from distkv.actors.instance.step_chunks import MOST_CHUNKS, MOST_TEXT, StepChunks
from distkv.control.commands import Answer
from distkv.types import TokenLogprobs
from distkv.wire.codec import MAX_MESSAGE_BYTES, encode_envelope
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.to_client import RequestEnded, TokenChunk, TokenChunks


def chunk(name: str, **fields) -> TokenChunk:
    return TokenChunk(request_id=name, **({"token_ids": (1,)} | fields))


def sent(*answers: Answer) -> list[Answer]:
    chunks = StepChunks()
    return [now for answer in answers for now in chunks.add(answer)] + list(chunks.rest())


def test_chunks_to_one_client_go_in_one_message_and_in_order() -> None:
    first, second, third = chunk("a"), chunk("b"), chunk("a", finish_reason="stop")
    other = chunk("c")
    assert sent(Answer(b"x", first), Answer(b"y", other), Answer(b"x", second), Answer(b"x", third)) == [
        Answer(b"x", TokenChunks(chunks=(first, second, third))),
        Answer(b"y", other),
    ]


def test_one_alone_is_a_message_of_its_own() -> None:
    assert sent(Answer(b"x", chunk("a"))) == [Answer(b"x", chunk("a"))]


def test_nothing_overtakes_chunks_of_its_client() -> None:
    ended = RequestEnded(request_id="b", kind="failed", reason="lost")
    assert sent(Answer(b"x", chunk("a")), Answer(b"x", chunk("b")), Answer(b"x", ended), Answer(b"x", chunk("a"))) == [
        Answer(b"x", TokenChunks(chunks=(chunk("a"), chunk("b")))),
        Answer(b"x", ended),
        Answer(b"x", chunk("a")),
    ]


def test_what_may_be_large_goes_alone() -> None:
    logprobs = (TokenLogprobs(token_id=1, logprob=-1.0, rank=1),)
    large = [chunk("b", logprobs=logprobs), chunk("c", prompt_logprobs=logprobs), chunk("d", text="x" * MOST_TEXT * 2)]
    for body in large:
        assert sent(Answer(b"x", chunk("a")), Answer(b"x", body)) == [Answer(b"x", chunk("a")), Answer(b"x", body)]


def test_a_message_stays_far_below_the_limit() -> None:
    most = [Answer(b"x", chunk(f"{index:0256}", text="\U0001f600" * MOST_TEXT)) for index in range(MOST_CHUNKS + 1)]
    several, one = sent(*most)
    assert isinstance(several.body, TokenChunks) and len(several.body.chunks) == MOST_CHUNKS
    assert isinstance(one.body, TokenChunk)
    assert len(encode_envelope(Envelope(id="1", sender="i0", body=several.body))) < MAX_MESSAGE_BYTES / 8
