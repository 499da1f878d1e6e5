"""Facts that figures are worth nothing without."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import distkv


def machine_facts() -> dict[str, Any]:
    """The processor, cores this process may use, memory, system, date, and how busy the machine is now."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "date": datetime.now(UTC).date().isoformat(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python, of distkv, and of these packages; "not installed" for those that are not."""
    found = {"python": platform.python_version(), "distkv": distkv.__version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def raise_descriptor_limit() -> int:
    """As far as it goes, for this process and those it starts; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
