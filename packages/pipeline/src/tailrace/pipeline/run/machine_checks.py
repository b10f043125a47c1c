"""The checks of machines that a configuration asks for."""

from __future__ import annotations

from tailrace.faulttol.machine_checks import GROUP
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.options import registered
from tailrace.pipeline.executor.checked_start import MachineChecks
from tailrace.pipeline.run.directory import RunDirectory


def check_machine_checks(config: RunConfig) -> None:
    """Check that every check is there.

    Raises:
        ConfigError: one is unknown.
    """
    for name in config.executor.machine_checks:
        registered("executor.machine_checks", GROUP, name)


def machine_checks(config: RunConfig, directory: RunDirectory) -> MachineChecks | None:
    """The checks; None without any."""
    table = config.executor
    if not table.machine_checks:
        return None
    return MachineChecks(table.machine_checks, directory.root.absolute(), table.machine_check_s)
