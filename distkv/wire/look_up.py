"""Addresses of names, for which a caller waits so long at most; the system waits for a name server as it likes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future

from distkv import threads

_lock = threading.Lock()
_under_way: dict[str, Future[list[str]]] = {}


def look_up(host: str, timeout_s: float) -> list[str]:
    """The numeric addresses of a host for TCP, the preferred one first.

    Raises TimeoutError, OSError (also where there is no thread left), and ValueError for what is no name.
    """
    return begin_look_up(host).result(timeout_s)


def begin_look_up(host: str) -> Future[list[str]]:
    """The same, which nobody waits for; it cannot be cancelled. Who asks for a name that is being looked up gets the
    same answer, so that a name takes one thread, however often it is asked for. Raises OSError where there is none."""
    if is_numeric(host):
        known: Future[list[str]] = Future()
        known.set_result([host])
        return known
    with _lock:
        if (answer := _under_way.get(host)) is None:
            answer = Future()
            answer.set_running_or_notify_cancel()
            threads.start(threading.Thread(target=_answer, args=(host, answer), name=f"look up {host}", daemon=True))
            _under_way[host] = answer
    return answer


def is_numeric(host: str) -> bool:
    """Whether it is an address, which no name server is asked for."""
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):
        return False
    return True


def _answer(host: str, answer: Future[list[str]]) -> None:
    found: list[str] = []
    failure: Exception | None = None
    try:
        addresses = (str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        found = list(dict.fromkeys(addresses))
    except Exception as error:
        failure = error
    with _lock:
        del _under_way[host]
    if failure is None:
        answer.set_result(found)
    else:
        answer.set_exception(failure)
