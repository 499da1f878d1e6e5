"""The part of UCP that is used here, called in libucp itself: only the C library is needed, from whatever package.

Names, values and layouts are those of ucp/api/ucp.h, ucp/api/ucp_def.h and ucs/type/status.h, which keep them across
versions: every structure begins with a mask that says which of its fields are given.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

from distkv.wire.links.transports.one_sided.environment import QUIET, environment
from distkv.wire.links.transports.one_sided.errors import OneSidedError

MIN_VERSION = 1, 21
"""The first that can be kept from emulating gets."""

OK, INPROGRESS = 0, 1
_ERR_LAST = -100
_STATUS = ctypes.c_int8  # ucs_status_t is a packed enum

FEATURE_RMA, FEATURE_WAKEUP = 1 << 1, 1 << 4
THREAD_MODE_SERIALIZED = 1
ERR_HANDLING_MODE_PEER = 1
EP_CLOSE_FLAG_FORCE = 1
MEM_MAP_NONBLOCK = 1
MEM_MAP_PROT_LOCAL_READ, MEM_MAP_PROT_REMOTE_READ = 1 << 0, 1 << 8
MEMORY_TYPES = {"host": 0, "cuda": 1}

_POINTER, _SIZE, _U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
_SPARE = ("spare", _U64 * 40)
"""Room for the fields that are not used, and for those of later versions."""


class ContextParams(ctypes.Structure):
    FEATURES, MT_WORKERS_SHARED = 1 << 0, 1 << 5
    _fields_ = [
        ("mask", _U64), ("features", _U64), ("request_size", _SIZE), ("request_init", _POINTER),
        ("request_cleanup", _POINTER), ("tag_sender_mask", _U64), ("mt_workers_shared", ctypes.c_int), _SPARE,
    ]  # fmt: skip


class WorkerParams(ctypes.Structure):
    THREAD_MODE = 1 << 0
    _fields_ = [("mask", _U64), ("thread_mode", ctypes.c_int), _SPARE]


class WorkerAttr(ctypes.Structure):
    ADDRESS = 1 << 1
    _fields_ = [
        ("mask", _U64), ("thread_mode", ctypes.c_int), ("address_flags", ctypes.c_uint32), ("address", _POINTER),
        ("address_length", _SIZE), _SPARE,
    ]  # fmt: skip


class EpParams(ctypes.Structure):
    REMOTE_ADDRESS, ERR_HANDLING_MODE = 1 << 0, 1 << 1
    _fields_ = [("mask", _U64), ("address", _POINTER), ("err_mode", ctypes.c_int), _SPARE]


class MemMapParams(ctypes.Structure):
    ADDRESS, LENGTH, FLAGS, PROT, MEMORY_TYPE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4
    _fields_ = [
        ("mask", _U64), ("address", _POINTER), ("length", _SIZE), ("flags", ctypes.c_uint), ("prot", ctypes.c_uint),
        ("memory_type", ctypes.c_int), _SPARE,
    ]  # fmt: skip


class RequestParam(ctypes.Structure):
    FLAGS = 1 << 4
    _fields_ = [("mask", ctypes.c_uint32), ("flags", ctypes.c_uint32), _SPARE]


class UcxError(OneSidedError):
    """A call of UCP failed."""

    library = "UCX"


class Ucp:
    """The functions of libucp. Those that only take note of something hold the interpreter, which costs less than to
    give it up and to wait for it again; those that wait or copy release it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises UcxError for a version that is too old."""
        released, held = library, ctypes.PyDLL(library._name, handle=library._handle)
        self._held = held
        p = _POINTER
        self._status_string = _function(held, "ucs_status_string", ctypes.c_char_p, _STATUS)
        self.get_version = _function(held, "ucp_get_version", None, p, p, p)
        self.config_read = _function(released, "ucp_config_read", _STATUS, p, p, p)
        self.config_modify = _function(held, "ucp_config_modify", _STATUS, p, ctypes.c_char_p, ctypes.c_char_p)
        self.config_release = _function(held, "ucp_config_release", None, p)
        self.init_version = _function(released, "ucp_init_version", _STATUS, ctypes.c_uint, ctypes.c_uint, p, p, p)
        self.cleanup = _function(released, "ucp_cleanup", None, p)
        self.worker_create = _function(released, "ucp_worker_create", _STATUS, p, p, p)
        self.worker_destroy = _function(released, "ucp_worker_destroy", None, p)
        self.worker_query = _function(held, "ucp_worker_query", _STATUS, p, p)
        self.worker_release_address = _function(held, "ucp_worker_release_address", None, p, p)
        self.worker_get_efd = _function(held, "ucp_worker_get_efd", _STATUS, p, p)
        self.worker_arm = _function(held, "ucp_worker_arm", _STATUS, p)
        self.worker_wait = _function(released, "ucp_worker_wait", _STATUS, p)
        self.worker_signal = _function(held, "ucp_worker_signal", _STATUS, p)
        self.worker_progress = _function(released, "ucp_worker_progress", ctypes.c_uint, p)
        self.mem_map = _function(released, "ucp_mem_map", _STATUS, p, p, p)
        self.mem_unmap = _function(released, "ucp_mem_unmap", _STATUS, p, p)
        self.rkey_pack = _function(held, "ucp_rkey_pack", _STATUS, p, p, p, p)
        self.rkey_buffer_release = _function(held, "ucp_rkey_buffer_release", None, p)
        self.ep_create = _function(released, "ucp_ep_create", _STATUS, p, p, p)
        self.ep_close = _function(released, "ucp_ep_close_nbx", p, p, p)
        self.ep_rkey_unpack = _function(held, "ucp_ep_rkey_unpack", _STATUS, p, p, p)
        self.rkey_destroy = _function(held, "ucp_rkey_destroy", None, p)
        self.get = _function(held, "ucp_get_nbx", p, p, p, _SIZE, _U64, p, p)
        self.request_check_status = _function(held, "ucp_request_check_status", _STATUS, p)
        self.request_free = _function(held, "ucp_request_free", None, p)
        numbers = [ctypes.c_uint() for _ in range(3)]
        self.get_version(*(ctypes.byref(number) for number in numbers))
        self.version: tuple[int, int] = numbers[0].value, numbers[1].value
        if self.version < MIN_VERSION:
            raise UcxError(f"version {_dotted(self.version)} is installed, {_dotted(MIN_VERSION)} is needed")

    def held(self, name: str, result: Any, *arguments: Any) -> Any:
        """One more function of libucp, which holds the interpreter."""
        return _function(self._held, name, result, *arguments)

    def check(self, what: str, status: int) -> None:
        """Raise UcxError unless `status` is OK."""
        if status != OK:
            raise UcxError(f"{what}: {self.reason(status)}")

    def reason(self, status: int) -> str:
        """A status in words."""
        return (self._status_string(status) or b"unknown").decode("ascii", "replace")

    def request(self, what: str, pointer: int | None) -> int | None:
        """The request under way that a call returned, None if it is already complete. Raises UcxError."""
        if pointer is not None and pointer >= (_ERR_LAST & 2**64 - 1):
            self.check(what, pointer - 2**64)
        return pointer


@functools.cache
def load() -> Ucp:
    """libucp: of the package libucx, which ucxx brings too, else the system's.

    Raises ImportError if there is none, and UcxError if it is too old.
    """
    with environment(QUIET):
        try:
            packaged = importlib.import_module("libucx").load_library()[-1]
        except (ImportError, OSError):
            packaged = None
        try:
            return Ucp(packaged or ctypes.CDLL("libucp.so.0"))
        except (OSError, AttributeError) as error:
            raise ImportError(f"there is no libucp that can be used: {error}") from None


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
