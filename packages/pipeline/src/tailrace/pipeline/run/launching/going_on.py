"""A run that has begun and goes on: whether it can, and with which faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory


def check_resumed(directory: RunDirectory, changed: Mapping[str, Sequence[Any]]) -> None:
    """Check that there is something left to do.

    Args:
        directory: the run.
        changed: value before and after by key.

    Raises:
        RunDirectoryError: the run is simulated, or complete.
    """
    check_real(directory)
    if directory.summary.exists():
        steps, before = changed.get("pipeline.steps"), directory.configuration()
        if steps is None or steps[1] <= steps[0]:
            raise RunDirectoryError(
                f"{directory.root}: found a finished run (summary.json), expected one to go on with, or "
                f"--set pipeline.steps=N with more than its {before.pipeline.steps}"
            )


def to_go_on(config: RunConfig, directory: RunDirectory, faults: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a run that has begun: its faults, scripted and at random, belong to its first driver.

    Args:
        faults: those of the driver that goes on, by their keys of a configuration.

    Raises:
        RunDirectoryError: the run is simulated.
    """
    check_real(directory)
    first = {"faults": (), "mtbf_s": None} if directory.events.exists() else {}
    return config.model_copy(update={**first, **(faults or {})})


def check_real(directory: RunDirectory) -> None:
    """Check that it is no simulated run, which nobody goes on with."""
    if directory.simulated is not None:
        raise RunDirectoryError(f"{directory.root}: found a simulated run, expected a real one to go on with")
