"""What a sandbox is: it runs one Python program under limits and says how that ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tailrace.reward.sandbox.limits import DEFAULT_LIMITS, Limits


class RunVerdict(StrEnum):
    """How a program ended."""

    OK = "ok"
    """It ended with exit code 0."""
    ERROR = "error"
    """It ended with another exit code, or by a signal of its own."""
    OVER_BUDGET = "over-budget"
    """It was ended at a limit."""
    INFRASTRUCTURE = "infrastructure"
    """The sandbox failed; this says nothing of the program."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """The end of one program.

    Args:
        verdict: how it ended.
        limit: the limit that it ran into: ``cpu``, ``wall``, ``memory``, ``processes``, ``output``, ``scratch``
            or ``idle``.
        exit_code: its exit code, 128 + n after signal n, None where it has none.
        stdout: what it wrote, at most ``output_kib``.
        stderr: likewise.
        truncated: it wrote more than was kept.
        cpu_s: CPU seconds of its process tree, its interpreter's start included.
        wall_s: seconds from its start to its end.
        isolation: the sandbox's name.
        reason: why the sandbox failed, in one line; empty otherwise.
    """

    verdict: RunVerdict
    limit: str | None
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    cpu_s: float
    wall_s: float
    isolation: str
    reason: str = ""


class Sandbox(Protocol):
    """Runs untrusted Python programs, several at a time. Belongs to the event loop in which it is first used."""

    @property
    def name(self) -> str:
        """The backend's name."""

    async def run(self, program: str, *, stdin: bytes = b"", limits: Limits = DEFAULT_LIMITS) -> ProgramRun:
        """Run a program given as source text.

        Raises nothing for what the program does. When the awaiting task is cancelled, the program's whole process tree is
        killed before the cancellation goes on.
        """

    async def close(self) -> None:
        """Kill what still runs and free everything. Calling it again does nothing."""
