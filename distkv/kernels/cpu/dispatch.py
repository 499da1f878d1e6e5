"""Which of the CPU backends computes: the best level that the machine can run and the build has, or the one wanted."""

from __future__ import annotations

from dataclasses import dataclass

from distkv.errors import ConfigError
from distkv.kernels.backend import Backend
from distkv.kernels.cpu.calls.library import LEVELS, Library, Native, installed
from distkv.kernels.cpu.native_backend import NativeBackend
from distkv.kernels.cpu.torch_backend import TorchBackend
from distkv.types import CpuKernels

TORCH = "torch"
_NOT_HERE = "this CPU, or its operating system, cannot run it"


@dataclass(frozen=True)
class Choice:
    """level: a native one, whose functions are `native`, or "torch". why: in words, for the log."""

    level: str
    native: Native | None
    why: str


def available(library: Library | None = None) -> tuple[str, ...]:
    """What `choose` accepts here besides "auto", best first; "torch" is always the last."""
    library = library or installed()
    return (*(level for level in _ranked(library) if not _problem(library, level)), TORCH)


def choose(wanted: CpuKernels = "auto", library: Library | None = None) -> Choice:
    """The backend to use. Raises ConfigError for a level that is not here, naming those that are."""
    library = library or installed()
    if wanted == TORCH:
        return Choice(TORCH, None, "asked for")
    if wanted == "auto":
        return _best(library)
    if problem := _problem(library, wanted):
        raise ConfigError("cpu_kernels", f"{wanted} is not here: {problem}", f"here: {', '.join(available(library))}")
    return Choice(wanted, library.levels[wanted], "asked for")


def backend_of(choice: Choice | None = None) -> Backend:
    """What was chosen; the best there is when nothing was."""
    choice = choice or choose()
    return TorchBackend() if choice.native is None else NativeBackend(choice.native)


def _best(library: Library) -> Choice:
    best = available(library)[0]
    if best == TORCH:
        return Choice(TORCH, None, f"no native level is here: {'; '.join(dict.fromkeys(library.missing.values()))}")
    ranked = _ranked(library)
    better = [level for level in ranked[: ranked.index(best)] if level in library.machine]
    lost = [f"{level} is not here: {library.missing[level]}" for level in better]
    return Choice(best, library.levels[best], "; ".join(["the best that this CPU can run", *lost]))


def _ranked(library: Library) -> list[str]:
    """All levels, best first."""
    return sorted(LEVELS, key=lambda level: LEVELS.index(level) + (1.5 if level in library.slow else 0))


def _problem(library: Library, level: str) -> str:
    """Why a level cannot be used; empty if it can."""
    if level in library.missing:
        return library.missing[level]
    return "" if level in library.machine else _NOT_HERE
