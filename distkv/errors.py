"""Every error a user of distkv can meet.

    DistKVError
    ├── ConfigError            a flag, environment variable or file holds what it must not
    ├── InvalidParams          a SamplingParams field is out of range
    ├── CheckpointError        a model directory cannot be served
    ├── WireError              bytes from outside break the protocol
    │   ├── MalformedMessage
    │   ├── FrameTooLarge
    │   └── HandshakeRefused
    ├── LinkError              a tensor link ended or answered too late
    │   ├── LinkClosed
    │   └── LinkTimeout
    ├── ClusterError           a cluster could not start, or none answers
    │   ├── StartupFailed
    │   ├── ClusterUnreachable
    │   └── RequestUnknown     no instance knows of a request that is to be explained
    └── RequestError           one request ended without its answer
        ├── RequestRefused     it can never be served here
        └── RequestFailed      it was accepted, then lost; `retryable` says whether to try again
            └── NoInstanceReady    there is nobody who could take it now

Each class carries its facts as fields and builds its own sentence: what was expected, what came, what to do.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Any

from distkv.wording import counted

_short = Repr()
_short.maxstring = _short.maxother = 80


class DistKVError(Exception):
    """Root of the tree. All can be pickled and copied, so that pools of processes return them."""

    def __reduce__(self) -> tuple[Any, ...]:
        # As Exception has it, the sentence would be taken for the first field.
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[DistKVError], args: tuple[Any, ...]) -> DistKVError:
    return kind.__new__(kind, *args)


class ConfigError(DistKVError):
    """A setting is unknown or has an impossible value; `key` is its name as the user wrote it."""

    def __init__(self, key: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{key}: {problem}" + (f" ({hint})" if hint else ""))
        self.key, self.problem, self.hint = key, problem, hint


class InvalidParams(DistKVError, ValueError):
    """A field of SamplingParams is out of range. The sentence shows the beginning of what came."""

    def __init__(self, field: str, expected: str, got: object) -> None:
        super().__init__(f"{field}: expected {expected}, got {_short.repr(got)}")
        self.field, self.expected, self.got = field, expected, got


class CheckpointError(DistKVError):
    """A model directory is missing something, or asks for what the engine does not have."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class WireError(DistKVError):
    """Bytes that came from outside break the protocol. request_id: the request they were about, if that can be read."""

    request_id = ""


class MalformedMessage(WireError):
    """A frame is no message of the protocol."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"malformed message: {problem}")
        self.problem = problem


class FrameTooLarge(WireError):
    """A frame announces or has more bytes than its reader accepts."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes is over the limit of {limit_bytes} bytes")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class HandshakeRefused(WireError):
    """The other end of a tensor link is not who or what was expected."""

    def __init__(self, field: str, expected: object, got: object) -> None:
        super().__init__(f"handshake refused: {field} should be {expected!r}, the peer has {got!r}")
        self.field, self.expected, self.got = field, expected, got


class LinkError(DistKVError):
    """A tensor link can no longer be used; open a new one."""


class LinkClosed(LinkError):
    """The peer closed, died, or was never reached."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"link to {peer} closed: {why}")
        self.peer, self.why = peer, why


class LinkTimeout(LinkError):
    """The peer did not answer by the deadline."""

    def __init__(self, peer: str, waited_s: float) -> None:
        super().__init__(f"link to {peer}: no answer within {waited_s:.3f} s")
        self.peer, self.waited_s = peer, waited_s


class ClusterError(DistKVError):
    """A cluster could not be started or reached."""


class StartupFailed(ClusterError):
    """A process of the cluster ended, with `exit_code`, or did not become ready in time (None); `log` holds its last
    lines."""

    def __init__(self, process: str, why: str, log: str = "", exit_code: int | None = None) -> None:
        super().__init__(f"{process} did not start: {why}" + (f"\n{log}" if log else ""))
        self.process, self.why, self.log, self.exit_code = process, why, log, exit_code


class ClusterUnreachable(ClusterError):
    """Neither a gManager nor any known instance answers."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"no distkv cluster answers at {address}: {why}")
        self.address, self.why = address, why


class RequestUnknown(ClusterError):
    """No instance knows of a request: it never came, or ended long ago."""

    def __init__(self, request_id: str, num_asked: int, num_silent: int) -> None:
        silent = f", of which {num_silent} did not answer" if num_silent else ""
        super().__init__(
            f"no request {_short.repr(request_id)} is known: asked {counted(num_asked, 'instance')}{silent}; each "
            "remembers those it serves and the newest that ended"
        )
        self.request_id, self.num_asked, self.num_silent = request_id, num_asked, num_silent


def context_length_exceeded(most: int, prompt_tokens: int, max_tokens: int, *, is_exact: bool = True) -> str:
    """vLLM's sentence, which clients recognize: a request may have `most` tokens. is_exact: the prompt has not more."""
    at_least = "" if is_exact else "at least "
    return (
        f"This model's maximum context length is {most} tokens. However, you requested {max_tokens} output tokens and "
        f"your prompt contains {at_least}{prompt_tokens} input tokens, for a total of {at_least}"
        f"{prompt_tokens + max_tokens} tokens. Please reduce the length of the input prompt or the number of requested "
        "output tokens."
    )


class RequestError(DistKVError):
    """A request ended without its answer."""


class RequestRefused(RequestError, ValueError):
    """Prompt and max_tokens together exceed all lendable memory of the live instances, or the request is invalid."""

    def __init__(self, needed_tokens: int, pool_tokens: int, reason: str = "") -> None:
        why = reason or (
            f"the request needs KV memory for {needed_tokens} tokens (prompt + max_tokens), "
            f"all live instances together can give {pool_tokens}"
        )
        super().__init__(why)
        self.needed_tokens, self.pool_tokens, self.reason = needed_tokens, pool_tokens, why


class RequestFailed(RequestError):
    """A request was lost, or could not be taken in; `retryable` says whether sending it again can help, and
    `retry_after_s` when, if that is known. pool_tokens: what there is memory for now, where that is too little."""

    def __init__(self, retryable: bool, reason: str, retry_after_s: float = 0.0, pool_tokens: int = 0) -> None:
        super().__init__(reason + (" (retryable)" if retryable else ""))
        self.retryable, self.reason, self.retry_after_s = retryable, reason, retry_after_s
        self.pool_tokens = pool_tokens


class NoInstanceReady(RequestFailed):
    """No instance takes requests now; another try may find one."""

    def __init__(self, reason: str) -> None:
        super().__init__(True, reason)
