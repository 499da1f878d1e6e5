"""CUDA's driver API for memory that several processes map, called in libcuda itself: torch has none of it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from distkv.errors import DistKVError

LIBRARY = "libcuda.so.1"

HAS_VMM, HAS_DESCRIPTORS, HAS_RDMA = 102, 103, 110
"""Attributes of a device: virtual memory management; memory that a file descriptor names; such memory for RDMA."""

_PINNED, _ON_DEVICE, _DESCRIPTOR = 1, 1, 1
_RECOMMENDED = 1
_READ, _READ_WRITE = 1, 3


class DriverError(DistKVError):
    """A call of the driver API failed. call: its function. reason: the name of the error."""

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"{call}: {reason}")
        self.call, self.reason = call, reason


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32_metadata", ctypes.c_void_p),
        ("compression_type", ctypes.c_ubyte),
        ("rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


_int, _uint, _size, _u64 = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64
_out = ctypes.c_void_p
ARGUMENTS: dict[str, tuple[type, ...]] = {
    "cuInit": (_uint,),
    "cuGetErrorName": (_int, _out),
    "cuDeviceGet": (_out, _int),
    "cuDeviceGetCount": (_out,),
    "cuDeviceGetUuid_v2": (_out, _int),
    "cuDeviceGetAttribute": (_out, _int, _int),
    "cuDeviceCanAccessPeer": (_out, _int, _int),
    "cuDevicePrimaryCtxRetain": (_out, _int),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (_out,),
    "cuMemGetAllocationGranularity": (_out, _out, _int),
    "cuMemCreate": (_out, _size, _out, _u64),
    "cuMemRelease": (_u64,),
    "cuMemExportToShareableHandle": (_out, _u64, _int, _u64),
    "cuMemImportFromShareableHandle": (_out, ctypes.c_void_p, _int),
    "cuMemAddressReserve": (_out, _size, _size, _u64, _u64),
    "cuMemAddressFree": (_u64, _size),
    "cuMemMap": (_u64, _size, _size, _u64, _u64),
    "cuMemSetAccess": (_u64, _size, _out, _size),
    "cuMemUnmap": (_u64, _size),
}
"""All that is called, by the names that the library exports."""


class Driver:
    """Memory of one GPU of this process, and of others that it reaches. Every call may raise DriverError. Any thread
    may call. Its context is torch's."""

    def __init__(self, index: int, library: str = LIBRARY) -> None:
        """index: of the GPU among those that are visible. Raises DriverError, also where there is no such library."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(library, str(error)) from None
        self._call("cuInit", 0)
        self._device = self._number("cuDeviceGet", index)
        self._context = ctypes.c_void_p()
        # Kept for as long as the process lives, as torch does.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)

    def has(self, attribute: int) -> bool:
        """Whether the GPU has it, by one of the numbers above."""
        return bool(self._number("cuDeviceGetAttribute", attribute, self._device))

    def device_of(self, unit: str) -> int | None:
        """The GPU with this UUID, None where this process does not see it."""
        for index in range(self._number("cuDeviceGetCount")):
            device = self._number("cuDeviceGet", index)
            uuid = (ctypes.c_ubyte * 16)()
            self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
            if str(UUID(bytes=bytes(uuid))) == unit:
                return device
        return None

    def can_access(self, device: int) -> bool:
        """Whether kernels of the own GPU can read the memory of another one; its own always."""
        return device == self._device or bool(self._number("cuDeviceCanAccessPeer", self._device, device))

    def granularity(self) -> int:
        """What the size of memory is a multiple of, in bytes: 2 MiB on GPUs of today."""
        found = ctypes.c_size_t()
        with self._current():
            self._call(
                "cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(self._properties()), _RECOMMENDED
            )
        return found.value

    def create(self, num_bytes: int) -> int:
        """Memory of the GPU that a descriptor can name; returns its handle, which `release` gives back."""
        with self._current():
            return self._handle("cuMemCreate", num_bytes, ctypes.byref(self._properties()), 0)

    def export(self, handle: int) -> int:
        """A descriptor that names the memory for other processes; the caller closes it."""
        descriptor = ctypes.c_int(-1)
        with self._current():
            self._call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, _DESCRIPTOR, 0)
        return descriptor.value

    def import_(self, descriptor: int) -> int:
        """The handle of memory that another process has exported; the descriptor stays the caller's."""
        with self._current():
            return self._handle("cuMemImportFromShareableHandle", descriptor, _DESCRIPTOR)

    def release(self, handle: int) -> None:
        """The memory lives as long as it is mapped, or named, by any process."""
        self._call("cuMemRelease", handle)

    def reserve(self, num_bytes: int, alignment: int) -> int:
        """Addresses that nobody else gets; returns the first."""
        address = ctypes.c_uint64()
        with self._current():
            self._call("cuMemAddressReserve", ctypes.byref(address), num_bytes, alignment, 0, 0)
        return address.value

    def free(self, address: int, num_bytes: int) -> None:
        """The reverse of `reserve`."""
        with self._current():
            self._call("cuMemAddressFree", address, num_bytes)

    def map(self, address: int, num_bytes: int, handle: int) -> None:
        """The memory at these addresses; nobody has access yet."""
        with self._current():
            self._call("cuMemMap", address, num_bytes, 0, handle, 0)

    def unmap(self, address: int, num_bytes: int) -> None:
        """The reverse of `map`. It waits for no kernel: what reads there has to be done."""
        with self._current():
            self._call("cuMemUnmap", address, num_bytes)

    def give_access(self, address: int, num_bytes: int, *, writable: bool) -> None:
        """Kernels of the own GPU may read there, and write if `writable`."""
        access = AccessDesc(Location(_ON_DEVICE, self._device), _READ_WRITE if writable else _READ)
        with self._current():
            self._call("cuMemSetAccess", address, num_bytes, ctypes.byref(access), 1)

    def _properties(self) -> AllocationProp:
        return AllocationProp(
            type=_PINNED,
            handle_types=_DESCRIPTOR,
            location=Location(_ON_DEVICE, self._device),
            # Else no network adapter registers it.
            rdma_capable=self.has(HAS_RDMA),
        )

    def _number(self, name: str, *arguments: object) -> int:
        found = ctypes.c_int()
        self._call(name, ctypes.byref(found), *arguments)
        return found.value

    def _handle(self, name: str, *arguments: object) -> int:
        found = ctypes.c_uint64()
        self._call(name, ctypes.byref(found), *arguments)
        return found.value

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The GPU's context is the thread's, whatever it was."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(name, "this driver does not have it") from None
        function.argtypes = ARGUMENTS[name]
        if status := function(*arguments):
            said = ctypes.c_char_p()
            self._library.cuGetErrorName.argtypes = ARGUMENTS["cuGetErrorName"]
            self._library.cuGetErrorName(status, ctypes.byref(said))
            raise DriverError(name, (said.value or f"error {status}".encode()).decode())
