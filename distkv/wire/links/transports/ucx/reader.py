"""The end that reads: one-sided gets from one pool, one request for each, so that each says how it ended.

A flush would not do: it reports success for gets that failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from distkv.wire.links.memory.runs import Runs
from distkv.wire.links.transports.ucx import library
from distkv.wire.links.transports.ucx.access import UcxAccess
from distkv.wire.links.transports.ucx.context import CONTEXTS, Worker
from distkv.wire.links.transports.ucx.library import UcxError

WINDOW = 512
"""Gets under way at once; each costs some hundred bytes."""
_LONGEST_SLEEP_S = 0.1
"""While gets are under way: what carries them may have nothing to signal with."""
CANCEL_S = 1.0
"""How long cancelled gets are waited for before their worker is destroyed, which ends them in any case."""


class Gets:
    """Those of one read: `left` are not complete yet. Keeps their destination alive while they may write."""

    def __init__(self, runs: Runs) -> None:
        self.left = len(runs)
        self._memory: Sequence[object] = runs.memory
        # Integers of Python: what ctypes takes fastest.
        self.waiting: Iterator[tuple[int, int, int]] = zip(
            runs.local.tolist(), runs.sizes.tolist(), runs.remote.tolist(), strict=True
        )

    @property
    def is_complete(self) -> bool:
        """Whether none is left."""
        return not self.left

    def end(self) -> None:
        """None of them writes any more."""
        self._memory = ()


class Reader:
    """See one_sided.link.Reader; after UcxError, and once it is closed, nothing is read any more."""

    def __init__(self, access: UcxAccess, device: str) -> None:
        """Begins to connect. Raises UcxError."""
        self._context = CONTEXTS.take(device)
        self._ucp = self._context.ucp
        self._base = access.address
        self._lock = threading.Lock()
        self._closed = False
        self._queued: deque[Gets] = deque()
        self._under_way: deque[tuple[int, Gets]] = deque()
        self._param = ctypes.byref(library.RequestParam())
        self._endpoint, self._rkey = ctypes.c_void_p(), ctypes.c_void_p()
        self._worker: Worker | None = None
        try:
            self._worker = Worker(self._context)
            self._sleep = select.poll()
            self._sleep.register(self._worker.event_fd, select.POLLIN)
            self._connect(self._worker, access)
        except BaseException:
            self.close()
            raise

    def start(self, runs: Runs) -> Gets:
        """See Reader. Raises UcxError."""
        gets = Gets(runs)
        with self._working():
            self._queued.append(gets)
            self._post()
        return gets

    def progress(self, gets: Gets) -> bool:
        """See Reader; moves all gets on. Raises UcxError."""
        with self._working() as worker:
            moved = worker.progress()
            self._reap()
            self._post()
        return moved

    def rest(self, socket: int, waited_s: float, at_most_s: float) -> None:
        """See Reader. Raises UcxError."""
        with self._working() as worker:
            can_sleep = worker.arm()
        if can_sleep:
            self._sleep.register(socket, select.POLLRDHUP)  # bytes of the peer do not wake a read, its end does
            self._sleep.poll(math.ceil(min(at_most_s, _LONGEST_SLEEP_S) * 1000))

    def close(self) -> None:
        """See Reader."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._worker is not None:
                self._cancel(self._worker)
                self._worker.close()
            for gets in {*self._queued, *(gets for _request, gets in self._under_way)}:
                gets.end()
            self._queued.clear()
            self._under_way.clear()
            CONTEXTS.give_back(self._context)

    @contextlib.contextmanager
    def _working(self) -> Iterator[Worker]:
        with self._lock:
            if self._closed or self._worker is None:
                raise UcxError("the reader is closed")
            yield self._worker

    def _connect(self, worker: Worker, access: UcxAccess) -> None:
        address = ctypes.create_string_buffer(access.worker, len(access.worker))
        params = library.EpParams(
            mask=library.EpParams.REMOTE_ADDRESS | library.EpParams.ERR_HANDLING_MODE,
            address=ctypes.addressof(address),
            # Else a get from a peer that was killed never ends.
            err_mode=library.ERR_HANDLING_MODE_PEER,
        )
        status = self._ucp.ep_create(worker.handle, ctypes.byref(params), ctypes.byref(self._endpoint))
        self._ucp.check("ucp_ep_create", status)
        rkey = ctypes.create_string_buffer(access.rkey, len(access.rkey))
        status = self._ucp.ep_rkey_unpack(self._endpoint, rkey, ctypes.byref(self._rkey))
        self._ucp.check("ucp_ep_rkey_unpack", status)

    def _post(self) -> None:
        """With the lock held: as many gets as the window takes."""
        get, endpoint, rkey, param, base = self._ucp.get, self._endpoint, self._rkey, self._param, self._base
        while self._queued and len(self._under_way) < WINDOW:
            gets = self._queued[0]
            for local, size, remote in gets.waiting:
                request = self._ucp.request("ucp_get_nbx", get(endpoint, local, size, base + remote, rkey, param))
                if request is None:
                    self._completed(gets)
                else:
                    self._under_way.append((request, gets))
                    if len(self._under_way) == WINDOW:
                        break
            else:
                self._queued.popleft()

    def _reap(self) -> None:
        """With the lock held: take note of gets that are complete, oldest first."""
        status_of, free = self._ucp.request_check_status, self._ucp.request_free
        while self._under_way:
            request, gets = self._under_way[0]
            status = status_of(request)
            if status == library.INPROGRESS:
                return
            self._under_way.popleft()
            free(request)
            self._ucp.check("ucp_get_nbx", status)
            self._completed(gets)

    @staticmethod
    def _completed(gets: Gets) -> None:
        gets.left -= 1
        if not gets.left:
            gets.end()

    def _cancel(self, worker: Worker) -> None:
        """With the lock held: end all gets, and see them ended."""
        deadline = time.monotonic() + CANCEL_S
        closing = None
        if self._endpoint:
            param = library.RequestParam(mask=library.RequestParam.FLAGS, flags=library.EP_CLOSE_FLAG_FORCE)
            with contextlib.suppress(UcxError):
                pointer = self._ucp.ep_close(self._endpoint, ctypes.byref(param))
                closing = self._ucp.request("ucp_ep_close_nbx", pointer)
        requests = [request for request, _gets in self._under_way] + ([] if closing is None else [closing])
        for request in requests:
            while self._ucp.request_check_status(request) == library.INPROGRESS and time.monotonic() < deadline:
                worker.progress()
            self._ucp.request_free(request)
        if self._rkey:
            self._ucp.rkey_destroy(self._rkey)
