"""One agent of NIXL, with UCX behind it, bound to one network device."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkv.wire.links.memory.pool_memory import PoolRegion
from distkv.wire.links.transports.nixl.bindings import failing_as, nixl
from distkv.wire.links.transports.one_sided.environment import environment

SETTINGS = {
    # Peer error handling rules these out; without them an agent takes 4 MB less.
    "UCX_TLS": "^mm",
    # Else a connection attempt to a host that drops it holds the thread past every deadline.
    "UCX_TCP_CONN_NB": "y",
}
"""Of every agent's UCX, each unless the environment sets it. Peer error handling, and gets instead of rendezvous, are
NIXL's defaults."""

WAKE_S = 0.1
"""The thread of an agent sleeps until its sockets have something for it; so long at most, as NIXL advises."""

_SEGMENTS = {"host": nixl.DRAM_SEG, "cuda": nixl.VRAM_SEG}

Rows = NDArray[np.uint64]
"""[n, 3]: address, number of bytes, number of the device."""


class Agent:
    """Its calls raise NixlError, and may come from any thread."""

    def __init__(self, device: str, *, has_thread: bool) -> None:
        """device: the network device that it may use, "" for all. has_thread: whether it answers by itself, or moves on
        only within calls of `is_done`."""
        self._name = f"distkv-{secrets.token_hex(8)}"
        config = nixl.nixlAgentConfig()
        config.useProgThread = has_thread
        config.useListenThread = False
        config.pthrDelay = round(WAKE_S * 1e6)
        config.syncMode = nixl.NIXL_THREAD_SYNC_STRICT
        # Agents connect to themselves, too, which they do by loopback.
        devices = ",".join(dict.fromkeys([device, "lo"]))
        settings = SETTINGS | ({"UCX_NET_DEVICES": devices} if device else {})
        # An endpoint that is given up on is not flushed first: nobody may be there to answer.
        options = {"ucx_ep_close_force": "true"}
        with failing_as(f"an agent on {device or 'all devices'}"), environment(settings):
            self._agent: Any = nixl.nixlAgent(self._name, config)
            self._agent.createBackend("UCX", options)

    @property
    def metadata(self) -> bytes:
        """By which others read what is registered here."""
        with failing_as("metadata of an agent"):
            return bytes(self._agent.getLocalMD())

    def register(self, region: PoolRegion) -> None:
        """The memory stays where it is until `deregister`, or for ever."""
        with failing_as(f"registering {region.num_bytes} bytes of {region.memory} memory"):
            self._agent.registerMem(_registered(region))

    def deregister(self, region: PoolRegion) -> None:
        """Exactly what was registered."""
        with failing_as(f"deregistering {region.num_bytes} bytes of {region.memory} memory"):
            self._agent.deregisterMem(_registered(region))

    def connect(self, metadata: bytes) -> str:
        """Begin to connect to the agent whose metadata this is; returns its name. The bytes are trusted."""
        with failing_as("metadata of a peer"):
            return bytes(self._agent.loadRemoteMD(metadata)).decode()

    def disconnect(self, peer: str) -> None:
        """Forget a peer; what is under way is to be released before. More than once is fine."""
        with failing_as("disconnecting"):
            self._agent.invalidateRemoteMD(peer)

    def read(self, local: Rows, local_memory: str, remote: Rows, remote_memory: str, peer: str) -> int:
        """Start to read a list of places of the peer, of as many bytes as those here; returns the transfer, which is to
        be released, also if this raises later on."""
        with failing_as("starting a READ"):
            here = nixl.nixlXferDList(_SEGMENTS[local_memory], local)
            there = nixl.nixlXferDList(_SEGMENTS[remote_memory], remote)
            handle = int(self._agent.createXferReq(nixl.NIXL_READ, here, there, peer))
            try:
                self._agent.postXferReq(handle)
            except BaseException:
                self._agent.releaseXferReq(handle)
                raise
            return handle

    def is_done(self, transfer: int) -> bool:
        """Whether all its bytes are here; moves the agent on."""
        with failing_as("a READ"):
            return bool(self._agent.getXferStatus(transfer) == nixl.NIXL_SUCCESS)

    def release(self, transfer: int) -> None:
        """Once for each. One that is not done is cancelled, and may still write until the agent is closed."""
        with failing_as("releasing a READ"):
            self._agent.releaseXferReq(transfer)

    def close(self) -> None:
        """End the agent, its thread and all that it does; it is not used any more. Once."""
        self._agent = None


def _registered(region: PoolRegion) -> Any:
    return nixl.nixlRegDList(_SEGMENTS[region.memory], [(region.address, region.num_bytes, region.device, "")])
