"""A run as its files tell it: the configuration, the metrics, and what is folded from the event log as it is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import shown
from tailrace.controller.controller import Controller
from tailrace.controller.evaluations import EvaluationResult
from tailrace.controller.view import RunView
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.environment_setup import has_own_rows
from tailrace.pipeline.run.figures.batches import Batch
from tailrace.pipeline.run.figures.metrics import read_metrics
from tailrace.pipeline.run.pools import relay_count
from tailrace.pipeline.run.replay import controller_of, replayed
from tailrace.report.fold.folds import Folds


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
    folds: Folds
    batches: list[Batch]
    steps: list[dict[str, Any]]
    controls: list[EvaluationResult]
    summary: dict[str, Any] | None

    @property
    def contradictions(self) -> int:
        """Snapshots that showed something else than the controller believed."""
        return self.folds.run.contradictions

    @property
    def last_s(self) -> float:
        """When the last instant was."""
        return self.folds.run.now

    @property
    def first_work_s(self) -> float:
        """When the first replica served its first version: what comes before is start-up."""
        first_s = self.folds.versions.first_pulled_s
        return 0.0 if first_s is None else first_s

    @property
    def shown_s(self) -> tuple[float, float]:
        """The stretch of time that charts show first."""
        margin = 0.02 * (self.last_s - self.first_work_s)
        return max(0.0, self.first_work_s - 3 * margin), self.last_s + margin

    @property
    def last_step_s(self) -> float:
        """When the last step was done, or the log's end before there is one."""
        return max((batch.ended_s for batch in self.batches), default=self.last_s)

    @property
    def training_s(self) -> float:
        """Seconds from the first version that replicas could pull to the last step; 0 before there is one."""
        published = [one.published_s for one in self.folds.versions.ordered.values() if one.published_s is not None]
        return self.last_step_s - min(published) if published and self.batches else 0.0

    @property
    def measured(self) -> list[Batch]:
        """The batches that figures are of: all of a real run, those behind the warm-up of a simulated one."""
        warm_up = (self.directory.simulated or {}).get("warm_up", 0)
        return self.batches[warm_up:] or self.batches

    @property
    def window_s(self) -> tuple[float, float]:
        """The stretch of time of which shares are told: of a real run, from the first replica with weights to the last step.

        Of a simulated run it is the one that its figures are measured in, behind its warm-up.
        """
        warm_up = (self.directory.simulated or {}).get("warm_up")
        if warm_up is None:
            return self.first_work_s, self.last_step_s
        return measured_s(self.batches, warm_up, self.last_s)

    @property
    def tokens_per_s(self) -> float:
        """Response tokens trained on a second, from the first version that replicas could pull to the last step.

        Of a simulation that has ended it is its throughput as it was measured: behind the warm-up, prompts included.
        """
        if self.summary is not None and self.directory.simulated is not None:
            return float(self.summary["tokens_per_s"])
        tokens = sum(sum(batch.lengths) for batch in self.batches)
        return tokens / self.training_s if self.training_s else 0.0


def measured_s(batches: Sequence[Batch], warm_up: int, last_s: float) -> tuple[float, float]:
    """Seconds from the end of a warm-up, in batches, to the last batch, or to the log's end before there is one."""
    begin_s = batches[warm_up - 1].ended_s if 0 < warm_up <= len(batches) else 0.0
    return begin_s, batches[-1].ended_s if batches else last_s


def read_record(directory: RunDirectory) -> Record:
    """Read a run, finished or not.

    Raises:
        RunDirectoryError, ConfigError: a file is damaged, or another version wrote the log.
    """
    own = directory.configuration().trainer.processes
    devices = (directory.simulated or {}).get("trainer_devices", own)
    folds = _folded(controller_of(directory), directory.events, trainer_devices=devices, version=directory.version)
    return record_of(directory, folds)


def record_of(directory: RunDirectory, folds: Folds) -> Record:
    """The same of a run whose log was folded already.

    Raises:
        RunDirectoryError, ConfigError: a file is damaged.
    """
    config = directory.configuration()
    summary = read_json(directory.summary) if directory.summary.exists() else None
    return Record(
        directory,
        config,
        folds,
        folds.batches.trained,
        standing_steps(read_metrics(directory.metrics)),
        fine_tuned(directory, folds.run),
        summary,
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


def fine_tuned(directory: RunDirectory, run: RunView) -> list[EvaluationResult]:
    """The evaluations of the control that was fine-tuned on, from its own log, which starts behind the run's last version.

    Raises:
        RunDirectoryError, ConfigError: a file is damaged.
    """
    config = directory.configuration()
    spec, first = build_spec(config, controls=True, recorded=True), run.last_version + 1
    control = Controller(spec, relays=relay_count(config), first_version=first)
    for _ in replayed(control, directory.control_events, version=directory.version):
        pass
    return list(control.view.evaluations)


def _folded(controller: Controller, path: Path, *, trainer_devices: int, version: str) -> Folds:
    folds = Folds(controller.view, trainer_devices=trainer_devices)
    for instant in replayed(controller, path, version=version):
        folds.observe(instant.now, instant.events, instant.commands)
    folds.close()
    return folds


SIMULATED = "A simulated run: times are modelled, lengths and rewards are drawn, and nothing learns."


def facts_of(config: RunConfig, *, simulated: bool) -> dict[str, Any]:
    """App, model, task and seed, as they may be shown: the configuration may be somebody else's."""
    model = str(config.fleet.get("model") or config.fleet.get("profile")) if simulated else _model(config)
    task = "drawn lengths" if simulated else _task(config)
    return {"app": shown(config.app), "model": shown(model), "task": shown(task), "seed": config.seed}


def _model(config: RunConfig) -> str:
    path, small = config.model.path, config.model.small
    if path is not None:
        return str(path)
    return "small Qwen3" if small is None else f"small Qwen3, {small.layers} layers of {small.hidden}"


def _task(config: RunConfig) -> str:
    return f"rows of {config.environment.name}" if has_own_rows(config) else str(config.task)
