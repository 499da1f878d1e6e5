from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.links.peers import OPTIONAL, TRANSPORTS, Pair, open_pair, why_not


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if why := why_not(name):
        pytest.skip(why)
    return name


@pytest.fixture(scope="session")
def libraries() -> None:
    """Those of optional transports, in use once: what they open for good is open before a test looks."""
    for name in OPTIONAL:
        if not why_not(name):
            with open_pair(name):
                pass


@pytest.fixture
def pair(transport: str) -> Iterator[Pair]:
    with open_pair(transport) as pair:
        yield pair


@pytest.fixture(autouse=True)
def leaves_no_descriptors(libraries: None) -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    maps = pool_mappings()
    yield
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    assert pool_mappings() <= maps


def pool_mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:distkv-pool")


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace that reaches this one as 10.213.77.2, by a pair of devices; this one is 10.213.77.1."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and the program ip")
    name = f"distkv-{secrets.token_hex(3)}"
    near, far = f"n{name[-6:]}", f"f{name[-6:]}"
    commands = [
        f"netns add {name}",
        f"link add {near} type veth peer name {far}",
        f"link set {far} netns {name}",
        f"addr add 10.213.77.1/24 dev {near}",
        f"link set {near} up",
        f"-n {name} addr add 10.213.77.2/24 dev {far}",
        f"-n {name} link set {far} up",
        f"-n {name} link set lo up",
    ]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"ip {command}: {done.stderr.strip()}")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        subprocess.run(["ip", "link", "delete", near], capture_output=True)
