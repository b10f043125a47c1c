"""The batches that a run's weights were made of: their order from the event log, their tokens from the trajectory archive.

events.jsonl ──► what each version was made of, without what a fall-back undid
trajectories/trained.jsonl ──► the trajectories by name
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.executor.deployment import TRAINER
from tailrace.pipeline.run.eventlog import Instant

Operation = c.Accumulate | c.Step


@dataclass(frozen=True, slots=True)
class VersionUpdate:
    """What made a version from the one before it.

    Args:
        version: the version.
        operations: the trainer's commands in order; the last one is the `Step`.
    """

    version: int
    operations: tuple[Operation, ...]

    @property
    def trajectories(self) -> list[str]:
        """Names of what was trained on, in order."""
        found: list[str] = []
        for operation in self.operations:
            parts = (operation.trajectories,) if isinstance(operation, c.Accumulate) else operation.mini_batches
            found += [name for part in parts for name in part]
        return found


@dataclass(slots=True)
class _Updates:
    made: dict[int, VersionUpdate] = field(default_factory=dict)
    begun: dict[int, list[Operation]] = field(default_factory=dict)
    restarting: bool = False  # an `Up` that is told again, to another controller, undoes nothing

    def hear(self, event: c.Event) -> None:
        if isinstance(event, c.Stepped) and event.version in self.begun:
            self.made[event.version] = VersionUpdate(event.version, tuple(self.begun.pop(event.version)))
        elif isinstance(event, c.Up) and event.role == TRAINER and self.restarting:
            self.restarting = False  # what its checkpoint does not hold is undone
            self.begun.clear()
            self.made = {version: update for version, update in self.made.items() if version <= (event.version or 0)}

    def note(self, command: c.Command) -> None:
        if isinstance(command, c.Accumulate | c.Step):
            self.begun.setdefault(command.version, []).append(command)
        elif isinstance(command, c.Restart) and command.role == TRAINER:
            self.restarting = True


def updates(log: Iterable[Instant]) -> list[VersionUpdate]:
    """What the newest weights of a run were made of, in order, from its event log.

    A version that is published again under a new number after a fall-back has no update: no batch made it.
    """
    found = _Updates()
    for instant in log:
        for event in instant.events:
            found.hear(event)
        for command in instant.commands:
            found.note(command)
    return list(found.made.values())


def trained_once(made: Sequence[VersionUpdate], rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether each trajectory is in one batch, and the archive has just these, each with the version that it helped to make."""
    by_log = [(name, update.version) for update in made for name in update.trajectories]
    by_archive = Counter((str(row["trajectory"]), int(row["consumed_version"])) for row in rows)
    return len({name for name, _ in by_log}) == len(by_log) and Counter(by_log) == by_archive


def read_archive(path: Path) -> list[dict[str, Any]]:
    """The rows of ``trained.jsonl``; see `TrajectoryStore.export_jsonl`.

    Raises:
        RunDirectoryError: there is none, or it is damaged.
    """
    if not path.is_file():
        raise RunDirectoryError(
            f"{path}: found no archive of trained trajectories, expected that of a run that has finished"
        )
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append({**row, "trajectory": row["trajectory"], "consumed_version": row["consumed_version"]})
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{path}, line {number}: found no trained trajectory ({error!r})") from error
    return rows


def experience(row: Mapping[str, Any]) -> c.Experience:
    """A trajectory as the trainer had it, bit for bit."""
    observed = {place for begin, end in row["observations"] for place in range(begin, end)}
    drawn = zip(row["versions"], row["tokens"], row["logprobs"], strict=True)
    places = [(version, place in observed, token, value) for place, (version, token, value) in enumerate(drawn)]
    segments = []
    for (version, is_observation), run in groupby(places, key=lambda found: found[:2]):
        tokens = [(token, value) for _, _, token, value in run]
        segments.append(
            c.Segment(version, tuple(t for t, _ in tokens), tuple(v for _, v in tokens), observation=is_observation)
        )
    return c.Experience(
        trajectory=row["trajectory"],
        group=row["group"],
        prompt=tuple(row["prompt"]),
        segments=tuple(segments),
        finish=c.FinishReason(row["finish"]),
        reward=row["reward"],
        completed_version=row["completed_version"],
    )
