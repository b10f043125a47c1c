"""Starts a member only on a machine that passes its checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.faulttol.machine_checks import check_machine
from tailrace.pipeline.errors import MachineUnfitError


@dataclass(frozen=True, slots=True)
class MachineChecks:
    """The checks of a run.

    Args:
        names: plugins of ``tailrace.machine_check``, in their order.
        directory: a directory on the disk that the run uses.
        timeout_s: deadline for each check in seconds.
    """

    names: tuple[str, ...]
    directory: Path
    timeout_s: float


def start_checked(factory: Callable[..., Any], checks: MachineChecks, **arguments: Any) -> Any:
    """Build a role once this machine has passed its checks.

    Raises:
        MachineUnfitError: it did not.
    """
    for finding in check_machine(checks.directory, checks.names, timeout_s=checks.timeout_s):
        if not finding.fit:
            raise MachineUnfitError(f"its machine did not pass the check {finding.check!r}: {finding.found}")
    return factory(**arguments)
