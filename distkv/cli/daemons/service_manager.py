"""The state of a daemon for its service manager: systemd's notification protocol, see sd_notify(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import structlog

SEND_TIMEOUT_S = 1.0


class ServiceManager:
    """The service manager that started this process, if one did and listens."""

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        """Takes NOTIFY_SOCKET out of the environment: processes that we start must not notify in our name."""
        self._address = (os.environ if environ is None else environ).pop("NOTIFY_SOCKET", "")

    def notify(self, **state: object) -> None:
        """Send assignments such as READY=1. A service manager that does not read is logged, and no reason to fail."""
        if not self._address:
            return
        message = "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in state.items())
        # A leading @ stands for the zero byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT_S)
                sender.sendto(message.encode(), address)
        except OSError as error:
            structlog.get_logger().warning("the service manager cannot be told", reason=str(error))
