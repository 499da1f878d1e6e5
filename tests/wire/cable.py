"""A network namespace, and a cable to it that a test can cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

# Of this process alone: others may run the same tests beside it.
NAMESPACE, HERE, THERE = f"distkv-{os.getpid()}", f"dkh{os.getpid()}", f"dkt{os.getpid()}"
SUBNET = f"10.99.{os.getpid() % 200 + 20}"
OWN_ADDRESS, ADDRESS = f"{SUBNET}.1", f"{SUBNET}.2"
WITHIN = ("ip", "netns", "exec", NAMESPACE)

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root, and ip of iproute2"
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def cable() -> Iterator[None]:
    """ADDRESS is reached over HERE; commands that begin with WITHIN run there. Skips where there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            ip("netns", "add", NAMESPACE)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made: {error.stderr!r}")
        stack.callback(ip, "netns", "del", NAMESPACE)
        ip("link", "add", HERE, "type", "veth", "peer", "name", THERE)
        stack.callback(ip, "link", "del", HERE)
        ip("link", "set", THERE, "netns", NAMESPACE)
        ip("addr", "add", f"{OWN_ADDRESS}/24", "dev", HERE)
        ip("link", "set", HERE, "up")
        ip("-n", NAMESPACE, "addr", "add", f"{ADDRESS}/24", "dev", THERE)
        for device in (THERE, "lo"):
            ip("-n", NAMESPACE, "link", "set", device, "up")
        # The kernel says so a while later, and until then some take the device for none.
        wait_until(lambda: Path(f"/sys/class/net/{HERE}/operstate").read_text(encoding="utf-8") == "up\n", 10.0)
        yield
