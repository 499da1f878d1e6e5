"""Addresses of names, for which a caller waits so long at most; the system waits for a name server as it likes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future

from distkv import threads

_lock = threading.Lock()
_under_way: dict[tuple[str, int], Future[list[str]]] = {}


def look_up(host: str, port: int, timeout_s: float) -> list[str]:
    """The numeric addresses of a host for TCP, the preferred one first. Who asks for a name that is being looked up
    waits for the same answer, so that a name takes one thread, however often it is asked for.

    Raises TimeoutError, OSError (also where there is no thread left), and ValueError for what is no name.
    """
    try:
        return _addresses(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    key = host, port
    with _lock:
        if (answer := _under_way.get(key)) is None:
            answer = Future()
            threads.start(threading.Thread(target=_answer, args=(key, answer), name=f"look up {host}", daemon=True))
            _under_way[key] = answer
    return answer.result(timeout_s)


def _answer(key: tuple[str, int], answer: Future[list[str]]) -> None:
    found: list[str] = []
    failure: Exception | None = None
    try:
        found = _addresses(*key)
    except Exception as error:
        failure = error
    with _lock:
        del _under_way[key]
    if failure is None:
        answer.set_result(found)
    else:
        answer.set_exception(failure)


def _addresses(host: str, port: int, flags: int = 0) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [str(address[0]) for *_, address in found]
