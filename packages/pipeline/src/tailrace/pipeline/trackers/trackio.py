"""Tracker ``trackio``: Trackio's database on this machine, which ``trackio show`` draws."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tailrace.contracts import need_extra
from tailrace.pipeline.trackers.tracker import TrackedRun


@dataclass(frozen=True)
class Trackio:
    """A run of Trackio. A run that is resumed goes on under its name.

    Args:
        project: its project.
        space_id: a Space of Hugging Face that gets it too; none: it stays on this machine, where ``TRACKIO_DIR`` says, or in
            ``RUN/trackio``.
    """

    project: str = "tailrace"
    space_id: str | None = None
    apart: ClassVar[bool] = True

    def check(self) -> None:
        """See `TrackerPlugin`."""
        need_extra("tailrace-pipeline", "trackio", "trackio")

    def open(self, run: TrackedRun) -> _Run:
        """See `TrackerPlugin`."""
        return _Run(self, run)


class _Run:
    def __init__(self, options: Trackio, run: TrackedRun) -> None:
        directory = os.environ.setdefault("TRACKIO_DIR", str(run.directory.absolute() / "trackio"))
        import trackio  # reads the variable

        self._run: Any = trackio.init(
            project=options.project,
            name=f"{run.name}-{run.id[:6]}",
            space_id=options.space_id,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        shown = f"TRACKIO_DIR={shlex.quote(directory)} trackio show --project {shlex.quote(options.project)}"
        self.place = options.space_id or shown

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self, *, finished: bool) -> None:
        del finished
        self._run.finish()
