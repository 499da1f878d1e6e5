"""What the client of a simulated request has got so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from distkv.types import TokenLogprobs
from distkv.wire.messages.envelope import ToClient
from distkv.wire.messages.to_client import RequestEnded, TokenChunk


@dataclass(slots=True)
class Outcome:
    """The answer to one request; `finish` is its finish reason, `ended` says why there is (or was) no more of it."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    queue_s: float | None = None
    finish: str = ""
    ended: RequestEnded | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more may come."""
        return bool(self.finish) or self.ended is not None

    def receive(self, message: ToClient) -> None:
        """Take a message in. AssertionError if it breaks what `TokenChunk` and `RequestEnded` promise."""
        assert not self.done, f"{message} comes after the end"
        match message:
            case TokenChunk():
                self._receive_chunk(message)
            case RequestEnded():
                self.ended = message
            case _:
                raise AssertionError(f"no request is answered by {message}")

    def _receive_chunk(self, chunk: TokenChunk) -> None:
        is_first = bool(chunk.token_ids) and not self.tokens
        assert not (chunk.prompt_logprobs and self.tokens), "the prompt comes before the output"
        assert (chunk.queue_s is not None) == is_first, "the time in the queue comes with the first token, once"
        self.tokens.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs or ())
        self.prompt_logprobs.extend(chunk.prompt_logprobs or ())
        self.queue_s = chunk.queue_s if is_first else self.queue_s
        self.finish = chunk.finish_reason or ""
