"""One call: measure this machine with a configuration."""

from __future__ import annotations

from pathlib import Path

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit import Profile, fit_machine
from tailrace.fleetsim.profile.run import Progress, measure
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory

LEAST_STEPS = 5


def profile_machine(config: RunConfig, root: Path, name: str, *, steps: int, progress: Progress) -> Profile:
    """Run the configuration for a few steps in a new directory, with clocks, and fit the machine to what they say.

    Args:
        name: of the machine.
        steps: of training.
        progress: told what is going on.

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
