"""The door of experiment trackers, entry-point group ``tailrace.tracker``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

GROUP = "tailrace.tracker"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of a run.

    Args:
        directory: the run directory.
        config: the resolved configuration.
    """

    directory: Path
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.directory.name

    @property
    def id(self) -> str:
        """The same text each time that this run is resumed, and another one for every other run on this machine."""
        return hashlib.sha256(str(self.directory.absolute()).encode()).hexdigest()[:16]


class Tracker(Protocol):
    """One run's metrics on their way to one place. One thread uses it."""

    @property
    def place(self) -> str:
        """Where a person looks at them: an address, a path or a command."""
        ...

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take some figures.

        Args:
            step: optimizer steps of the run so far. Not always rising: an evaluation may come behind later steps.
            figures: finite numbers by names such as ``step/loss`` and ``evaluation/sampled/accuracy``.
        """
        ...

    def close(self, *, finished: bool) -> None:
        """Bring everything to its place.

        Args:
            finished: whether the run came to its end; False: it failed or was stopped, and may go on later.
        """
        ...


class TrackerPlugin(Protocol):
    """What an entry point of the group names: a frozen dataclass, whose fields are the tracker's options.

    Its module imports the tracker's library inside of `open` only.
    """

    @property
    def apart(self) -> bool:
        """Whether it works in a process of its own, which is ended if it stands still."""
        ...

    def check(self) -> None:
        """Check its options, and that what it needs is installed. It takes milliseconds.

        Raises:
            MissingExtraError, ValueError: what is missing or wrong, in one line.
        """
        ...

    def open(self, run: TrackedRun) -> Tracker:
        """Begin, or go on with what an earlier driver of the run began."""
        ...
