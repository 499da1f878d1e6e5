"""Who of several clients is next."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ClientQueue(Generic[T]):
    """Items of clients, taken by turns between them: of each its oldest. So it does not matter to one how many another
    has here. Cost per item: constant, whatever their number and that of clients."""

    def __init__(self) -> None:
        self._of: dict[str, dict[T, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, client: str, item: T) -> None:
        """Add an item, behind the others of its client."""
        self._of.setdefault(client, {})[item] = None
        self._count += 1

    def first(self) -> tuple[str, T]:
        """What `take` would return."""
        client, items = next(iter(self._of.items()))
        return client, next(iter(items))

    def take(self) -> tuple[str, T]:
        """Remove the next item; the next of this client comes after one of each other."""
        client, item = self.first()
        self.remove(client, item)
        if (items := self._of.pop(client, None)) is not None:
            self._of[client] = items
        return client, item

    def remove(self, client: str, item: T) -> None:
        """Forget an item, if it is here."""
        items = self._of.get(client, {})
        if item in items:
            del items[item]
            self._count -= 1
            if not items:
                del self._of[client]
