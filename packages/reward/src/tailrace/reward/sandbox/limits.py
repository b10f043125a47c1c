"""What one program may use. The kernel holds each process to it, the supervisor its whole tree: as it runs, and at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.reward.sandbox.process_group import Usage

_MIB = 1 << 20
_OPEN_FILES = 256
_THREADS_PER_PROCESS = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use, counted over its whole process tree.

    Args:
        cpu_s: CPU seconds.
        wall_s: seconds from its start to its end.
        memory_mib: resident memory in MiB.
        processes: processes at a time; each may have 8 threads on average.
        output_kib: KiB of stdout and of stderr, each.
        scratch_mib: MiB of files in its scratch directory; directories more than 64 deep in each other count as more than any.
        idle_s: seconds in which none of its processes works; None: as long as the wall limit lets it.

    Raises:
        ValueError: a limit is not above zero, or not finite.
    """

    cpu_s: float = 10.0
    wall_s: float = 30.0
    memory_mib: int = 256
    processes: int = 16
    output_kib: int = 64
    scratch_mib: int = 16
    idle_s: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "idle_s" and value is None:
                continue
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"found {name}={value!r}, expected a finite number above 0")
        for name in ("memory_mib", "processes", "output_kib", "scratch_mib"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"found {name}={getattr(self, name)!r}, expected a whole number")


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended by itself. ``cpu_s`` is of all its processes, ``peak_bytes`` of the largest one."""

    exit_code: int
    cpu_s: float
    peak_bytes: int


def kernel_limits(limits: Limits) -> Sequence[tuple[int, int]]:
    """Limits that the kernel enforces on each process: backstops, since the whole tree is watched besides."""
    import resource

    return (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(limits.cpu_s) + 2),
        # Address space is not memory: the watcher ends a program at its memory limit, this bounds a single jump past it.
        (resource.RLIMIT_AS, (2 * limits.memory_mib + 512) * _MIB),
        (resource.RLIMIT_FSIZE, limits.scratch_mib * _MIB),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    )


def over_while_running(
    used: Usage, limits: Limits, *, shared_bytes: Callable[[], int], scratch_bytes: Callable[[], int]
) -> str:
    """Name the limit that a running program exceeds; empty if none.

    Args:
        used: what its tree uses.
        limits: what it may use.
        shared_bytes: counts memory that processes share once; asked only where the plain sum is over the limit.
        scratch_bytes: bytes of its files.
    """
    memory = limits.memory_mib * _MIB
    if used.cpu_s > limits.cpu_s:
        return "cpu"
    if too_many(used.processes, used.threads, limits):
        return "processes"
    if used.memory_bytes > memory and shared_bytes() > memory:
        return "memory"
    return "scratch" if scratch_bytes() > limits.scratch_mib * _MIB else ""


def too_many(processes: int, threads: int, limits: Limits) -> bool:
    """Whether so many are more than a program may have."""
    return processes > limits.processes or threads > limits.processes * _THREADS_PER_PROCESS


def over_at_end(ended: Ended, truncated: bool, scratch_bytes: int, limits: Limits) -> str | None:
    """The limit that a program was over when it ended between two looks."""
    if truncated:
        return "output"
    if ended.cpu_s > limits.cpu_s:
        return "cpu"
    if ended.peak_bytes > limits.memory_mib * _MIB:
        return "memory"
    return "scratch" if scratch_bytes > limits.scratch_mib * _MIB else None
