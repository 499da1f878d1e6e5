"""What goes wrong with a request, in OpenAI's shape: a status, and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import math
import re

import msgspec
from starlette.responses import Response

from distkv.errors import (
    ClusterUnreachable,
    InvalidParams,
    NoInstanceReady,
    RequestFailed,
    RequestRefused,
    RequestUnknown,
    context_length_exceeded,
)
from distkv.types import SamplingParams

RETRY_AFTER_S = 1
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
# Users see which instance failed, but not its address.
_ADDRESS = re.compile(r" at tcp://\S+(?=:)")


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One error. param: the field of the request that is wrong. code: for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every response that is an error, and of the event that ends a broken stream."""

    error: ErrorFacts


class ApiError(Exception):
    """An answer that is an error. Retryable ones (429, 503) get a Retry-After; `close` ends the connection."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, close: bool = False
    ) -> None:
        super().__init__(message)
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status)
        kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        # What users sent may be in it, even what UTF-8 cannot encode.
        message = message.encode(errors="replace").decode()
        self.status = status
        self.body = ErrorBody(ErrorFacts(message=message, type=kind, param=param, code=code))
        self.headers = {"retry-after": str(RETRY_AFTER_S)} if status in (429, 503) else {}
        self.closes = close
        if close:
            self.headers["connection"] = "close"

    def encoded(self) -> bytes:
        """The body as JSON."""
        return msgspec.json.encode(self.body)

    def response(self) -> Response:
        """The whole answer."""
        return Response(self.encoded(), self.status, self.headers, "application/json")


class ClientDisconnected(ApiError):
    """499: the client disconnected, so that only the log shows it."""

    def __init__(self) -> None:
        super().__init__(499, "the client is gone", close=True)


def final(status: int, message: str, code: str) -> ApiError:
    """500 or 501 that another try does not mend; the official client would try again."""
    error = ApiError(status, message, code=code)
    error.headers["x-should-retry"] = "false"
    return error


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is wrong, and `param` says where."""
    return ApiError(400, message, param=param, code=code)


def too_long(prompt_tokens: int, max_tokens: int, most: int, *, is_exact: bool = True) -> ApiError:
    """400: a request of these tokens can never fit. is_exact: the prompt has not more of them."""
    message = context_length_exceeded(most, prompt_tokens, max_tokens, is_exact=is_exact)
    return invalid(message, code=CONTEXT_LENGTH_EXCEEDED)


def unavailable(message: str, code: str, *, close: bool = False, retry_after_s: float = 0.0) -> ApiError:
    """503: not now; another try may succeed, after `retry_after_s` if that is known."""
    error = ApiError(503, message, code=code, close=close)
    error.headers["retry-after"] = str(max(RETRY_AFTER_S, math.ceil(retry_after_s)))
    return error


def internal() -> ApiError:
    """500: our bug; the log has the details."""
    return ApiError(500, "the gateway failed on this request; its log has the details", code="internal_error")


def from_cluster(error: Exception, *, draining: bool = False) -> ApiError | None:
    """What the client's error means to an HTTP user; None if it is none of them."""
    match error:
        case ApiError():
            return error
        case InvalidParams():
            return invalid(str(error), error.field)
        case RequestRefused() if error.needed_tokens:
            # However the instance says it, clients must recognize it.
            limit = f"This model's maximum context length is {error.pool_tokens} tokens."
            message = str(error) if str(error).startswith(limit) else f"{limit} However, {error}"
            return invalid(message, code=CONTEXT_LENGTH_EXCEEDED)
        case RequestRefused():
            field = error.reason.partition(":")[0]
            param = field if field in ("prompt", *SamplingParams.__struct_fields__) else None
            return invalid(str(error), param)
        case RequestFailed(retryable=True) if draining:
            reason = _ADDRESS.sub("", error.reason)
            return unavailable(f"the gateway is shutting down; {reason}", "draining", close=True)
        case RequestFailed() | ClusterUnreachable() if draining:
            return unavailable("the gateway is shutting down", "draining", close=True)
        case NoInstanceReady():
            return unavailable(_ADDRESS.sub("", error.reason), "no_ready_instance")
        case RequestFailed(retryable=True):
            return unavailable(_ADDRESS.sub("", error.reason), "request_failed", retry_after_s=error.retry_after_s)
        case RequestFailed():
            return final(500, _ADDRESS.sub("", error.reason), "request_failed")
        case RequestUnknown():
            return ApiError(404, str(error), code="not_found")
        case ClusterUnreachable():
            return unavailable("the cluster does not answer", "cluster_unreachable")
        case _:
            return None
