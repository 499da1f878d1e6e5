"""The end that is read from: agents that answer by themselves, without this process's Python."""

from __future__ import annotations

import threading

from distkv.wire.links.memory.pool_memory import PoolRegion
from distkv.wire.links.transports.nixl.agent import Agent


class ServingAgents:
    """One for each network device by which peers come, started with the first of them, over one region.

    The region must not be freed before `close`: over TCP a read of what is unmapped would end this process.
    """

    def __init__(self, region: PoolRegion) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._agents: dict[str, tuple[Agent, bytes]] = {}

    def metadata(self, device: str) -> bytes:
        """For a peer that comes by `device`. Raises NixlError."""
        with self._lock:
            if device not in self._agents:
                agent = Agent(device, has_thread=True)
                agent.register(self._region)
                self._agents[device] = agent, agent.metadata
            return self._agents[device][1]

    def close(self) -> None:
        """Reads under way fail at the other end."""
        with self._lock:
            agents, self._agents = self._agents, {}
        for agent, _metadata in agents.values():
            agent.deregister(self._region)
            agent.close()
