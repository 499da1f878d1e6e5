"""What the engines of a simulated cluster share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.links import Links

if TYPE_CHECKING:
    from distkv.sim.timed.engine.engine import Engine


@dataclass(slots=True)
class Around:
    """engines: of the newest incarnations, by instance. traffic: of those that compute a step
    (`PerformanceModel.traffic`), by host and instance, where that slows others down."""

    agenda: Agenda
    links: Links
    engines: dict[str, Engine] = field(default_factory=dict)
    traffic: dict[str, dict[str, float]] = field(default_factory=dict)
