"""What goes wrong in a library that reads."""

from __future__ import annotations

from typing import ClassVar

from distkv.errors import DistKVError


class OneSidedError(DistKVError):
    """A call of `library` failed; `why` says which, and how."""

    library: ClassVar[str]

    def __init__(self, why: str) -> None:
        super().__init__(f"{self.library}: {why}")
        self.why = why
