"""The network device by which a link goes: a library that reads is bound to it, so that it listens nowhere else."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40
_MOST_ADDRESSES = 512


def device_of(host: str) -> str:
    """The device that has this IP address. Raises ValueError if none has it, or it is no address."""
    address = ipaddress.ip_address(host.split("%")[0])
    devices = _ipv4() if address.version == 4 else _ipv6()
    if (name := devices.get(str(address))) is not None:
        return name
    if address.is_loopback:
        # Every address of 127.0.0.0/8 is one, and the device has only the first.
        return next(name for other, name in devices.items() if ipaddress.ip_address(other).is_loopback)
    raise ValueError(f"no network device has the address {host}")


def _ipv4() -> dict[str, str]:
    room = ctypes.create_string_buffer(_MOST_ADDRESSES * _IFREQ_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iP", len(room), ctypes.addressof(room)))
    size: int = struct.unpack("iP", answer)[0]
    found = {}
    for start in range(0, size, _IFREQ_BYTES):
        name, address = struct.unpack_from("16s4x4s", room, start)
        found[socket.inet_ntoa(address)] = name.split(b"\0")[0].split(b":")[0].decode()
    return found


def _ipv6() -> dict[str, str]:
    found = {}
    for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
        digits, _index, _prefix, _scope, _flags, name = line.split()
        found[str(ipaddress.IPv6Address(int(digits, 16)))] = name
    return found
