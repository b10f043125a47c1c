"""Axis batching: which prompts and how many samples are launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import GroupLaunch, Progress


@dataclass(frozen=True, slots=True)
class Plain:
    """The next prompt of the stream, with as many samples as the algorithm needs.

    Args:
        samples: trajectories per group.
    """

    samples: int = 8

    def launch(self, progress: Progress, room: int) -> Sequence[GroupLaunch]:
        """One group, if all of it fits."""
        return [GroupLaunch(progress.admitted, self.samples)] if room >= self.samples else []

    def needed(self) -> int:
        """All samples."""
        return self.samples
