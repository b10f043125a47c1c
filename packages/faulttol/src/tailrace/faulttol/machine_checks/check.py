"""What a check of a machine is, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailrace.faulttol.errors import FaulttolError


class UnfitError(FaulttolError):
    """A machine must not be used again. The message says what was found and what was expected."""


class MachineCheck(Protocol):
    """One check of the machine on which it runs. Entry-point group ``tailrace.machine_check``: a class of this protocol.

    Its arguments are its limits, each with a default.
    """

    def run(self, directory: Path) -> str:
        """Check the machine.

        Args:
            directory: a directory on the disk that the run uses. What the check writes there, it removes.

        Returns:
            What was found, in words.

        Raises:
            UnfitError: the machine is unfit.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check said.

    Args:
        check: its name.
        fit: whether the machine passed.
        found: what was found; for a machine that did not pass, also what was expected.
        seconds: how long it took.
    """

    check: str
    fit: bool
    found: str
    seconds: float
