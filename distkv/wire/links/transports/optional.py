"""A transport that needs packages which not everybody installs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from distkv.errors import ConfigError
from distkv.wire.links.memory.pool_memory import Pool
from distkv.wire.links.registration import Registration


@dataclass(frozen=True, slots=True)
class Optional:
    """module: has `register(pool)`; what it imports is installed by `extra` of this package."""

    name: str
    module: str
    extra: str

    def register(self, pool: Pool) -> Registration:
        """Raises ConfigError naming the extra when a package is missing, and what the module's own raises."""
        try:
            registration: Registration = importlib.import_module(self.module).register(pool)
        except ImportError as error:
            raise ConfigError(
                "tensor_transport", f"{self.name} cannot be used: {error}", f"pip install 'llm-distkv[{self.extra}]'"
            ) from None
        return registration
