"""A run as its files tell it: the configuration, the metrics, and a replay of the event log through a fresh controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.errors import ControllerError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.eventlog import read_events
from tailrace.pipeline.run.metrics import read_metrics
from tailrace.pipeline.run.reporting.observed import Batch, Observed, TimedEvaluation
from tailrace.pipeline.run.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that the report shows.

    Args:
        steps: one metrics row per step that stands, in order; rows of steps that a crash undid are left out.
        controls: evaluations of the model that was fine-tuned on instead of trained by RL.
        summary: None while the run has not finished.
    """

    directory: RunDirectory
    config: RunConfig
    controller: Controller
    timeline: Timeline
    observed: Observed
    batches: list[Batch]
    steps: list[dict[str, Any]]
    controls: list[TimedEvaluation]
    summary: dict[str, Any] | None

    @property
    def first_work_s(self) -> float:
        """When the first replica served its first version: what comes before is start-up."""
        return self.observed.first_pulled_s if self.observed.first_pulled_s is not None else 0.0

    @property
    def shown_s(self) -> tuple[float, float]:
        """The stretch of time that charts show first."""
        margin = 0.02 * (self.observed.last_s - self.first_work_s)
        return max(0.0, self.first_work_s - 3 * margin), self.observed.last_s + margin

    @property
    def last_step_s(self) -> float:
        """When the last step was done, or the log's end before there is one."""
        return max((batch.ended_s or 0.0 for batch in self.batches), default=self.observed.last_s)


def read_record(directory: RunDirectory) -> Record:
    """Read a run, finished or not.

    Raises:
        RunDirectoryError, ConfigError: a file is damaged.
        ControllerError: the event log was written by another version of the controller.
    """
    config = validate([(str(directory.config), directory.read_config())])
    controller = Controller(build_spec(config), relays=config.relay.count)
    timeline, observed = Timeline(), Observed()
    _replay(controller, directory.events, timeline, observed)
    timeline.close(observed.last_s)
    return Record(
        directory,
        config,
        controller,
        timeline,
        observed,
        observed.trained(controller),
        standing_steps(read_metrics(directory.metrics)),
        _controls(config, controller, directory.control_events),
        read_json(directory.summary) if directory.summary.exists() else None,
    )


def standing_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Step rows without those that were trained again: a row undoes every earlier one of its step or a later."""
    standing: list[dict[str, Any]] = []
    for row in rows:
        if row.get("kind") == "step":
            while standing and standing[-1]["step"] >= row["step"]:
                standing.pop()
            standing.append(row)
    return standing


def _controls(config: RunConfig, controller: Controller, path: Path) -> list[TimedEvaluation]:
    """The evaluations of the control's own log, which starts behind the run's last version."""
    if not path.exists():
        return []
    first = max(controller.learner.version, controller.learner.publishing) + 1
    control = Controller(build_spec(config, controls=True), relays=config.relay.count, first_version=first)
    observed = Observed()
    _replay(control, path, None, observed)
    return observed.evaluations


def _replay(controller: Controller, path: Path, timeline: Timeline | None, observed: Observed) -> None:
    if not path.exists():
        return
    event: c.Event
    for now, event in read_events(path):
        try:
            commands = controller.handle(event, now)
        except (c.TailraceError, KeyError, AssertionError) as error:
            raise ControllerError(
                f"{path}: does not replay at {now:.1f} s ({error}); expected a log that this version of Tailrace wrote"
            ) from error
        if timeline is not None:
            timeline.observe(now, event, commands, controller)
        observed.observe(now, event, commands, controller)
