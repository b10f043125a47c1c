"""Tracker ``wandb``: Weights & Biases, over the network or into files that ``wandb sync`` sends later."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tailrace.contracts import need_extra
from tailrace.pipeline.trackers.tracker import TrackedRun

_STEP = "trained_steps"


@dataclass(frozen=True)
class Wandb:
    """A run of Weights & Biases. A run that is resumed goes on under its id.

    Args:
        project: its project.
        entity: the team or user that it belongs to; none: your default.
        group: the group of runs that it belongs to.
        tags: its tags.
        mode: online, offline (files in ``RUN/wandb``), or auto: online if wandb knows a key of yours.
    """

    project: str = "tailrace"
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: Literal["auto", "online", "offline"] = "auto"
    apart: ClassVar[bool] = True

    def check(self) -> None:
        """See `TrackerPlugin`."""
        need_extra("tailrace-pipeline", "wandb", "wandb")

    def open(self, run: TrackedRun) -> _Run:
        """See `TrackerPlugin`."""
        return _Run(self, run)


class _Run:
    def __init__(self, options: Wandb, run: TrackedRun) -> None:
        import wandb

        settings = wandb.setup().settings
        # without a key wandb would ask for one on a terminal
        online = settings.api_key and settings.mode == "online" if options.mode == "auto" else options.mode == "online"
        self._run: Any = wandb.init(
            project=options.project,
            entity=options.entity,
            group=options.group,
            tags=options.tags,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.directory),
            config=dict(run.config),
            mode="online" if online else "offline",
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        # An evaluation may come behind a later step, and wandb's own steps only rise.
        self._run.define_metric("*", step_metric=_STEP)
        self.place = str(self._run.url) if online else f"wandb sync {shlex.quote(str(self._run.settings.sync_dir))}"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({**figures, _STEP: step})

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
