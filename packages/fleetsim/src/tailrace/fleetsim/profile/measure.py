"""Measures this machine with a configuration, in one call."""

from __future__ import annotations

from pathlib import Path

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit import Profile, fit_machine
from tailrace.fleetsim.profile.run import Progress, measure
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory

LEAST_STEPS = 5


def profile_machine(config: RunConfig, root: Path, name: str, *, steps: int, progress: Progress) -> Profile:
    """Run the configuration for a few steps in a new directory, with measured roles, and fit the machine's profile.

    Args:
        config: the configuration.
        root: the new run directory.
        name: the machine's name.
        steps: number of training steps.
        progress: called with the current phase and its progress.

    Raises:
        ProfileError: too few steps to fit to.
        TailraceError: the run failed.
    """
    if min(steps, config.pipeline.steps) < LEAST_STEPS:
        raise ProfileError(
            f"found {min(steps, config.pipeline.steps)} steps to measure, expected at least {LEAST_STEPS}"
        )
    directory = RunDirectory.create(root, config.model_dump(mode="json"))
    try:
        return fit_machine(measure(config, directory, steps, progress), name)
    finally:
        directory.unlock()
