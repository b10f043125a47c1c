"""What a replay of the event log shows and the metrics do not say: batches, moves, faults, versions, rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.controller import REPLICA, Controller
from tailrace.pipeline.controller.evaluations import EvaluationResult
from tailrace.pipeline.run.reporting.fates import Fates
from tailrace.pipeline.run.reporting.interruptions import Interruption, Why, interruptions


@dataclass(slots=True)
class Batch:
    """One batch that was trained on. Lengths in tokens, staleness in versions, one entry per trajectory."""

    version: int
    lengths: list[int]
    at_consumption: list[int]
    at_completion: list[int]
    began_s: float
    ended_s: float | None = None


@dataclass(slots=True)
class Fault:
    """A member that went down, and when it was up again."""

    at_s: float
    role: str
    member: str
    reason: str
    up_s: float | None = None


@dataclass(slots=True)
class Version:
    """A published weight version: when it was ordered, when the relays held it, how replicas pulled it."""

    version: int
    ordered_s: float
    published_s: float | None = None
    pulls_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TimedEvaluation:
    """An evaluation and when its last answer was scored."""

    at_s: float
    step: int
    result: EvaluationResult


class Observed:
    """Observes a replay."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.interruptions: list[Interruption] = []
        self.fates = Fates()
        self.faults: list[Fault] = []
        self.versions: dict[int, Version] = {}
        self.evaluations: list[TimedEvaluation] = []
        self.generated: list[tuple[float, float, float]] = []
        self.occupancy: list[tuple[float, int, int]] = []
        self.last_s = 0.0
        self.first_pulled_s: float | None = None
        self._pulling: dict[str, tuple[int, float]] = {}
        self._snapshots: dict[str, float] = {}

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """One event was handled."""
        self.last_s = now
        match event:
            case c.Stepped(version=version) if version in self.batches:
                self.batches[version].ended_s = now
            case c.Published(version=version) if version in self.versions:
                published = self.versions[version]
                published.published_s = now if published.published_s is None else published.published_s
            case c.Pulled(replica=replica, version=version):
                self.first_pulled_s = now if self.first_pulled_s is None else self.first_pulled_s
                ordered = self._pulling.pop(replica, None)
                if ordered is not None and version in self.versions:
                    self.versions[version].pulls_s.append(now - ordered[1])
            case c.Snapshot(replica=replica, tokens_per_s=rate):
                since = self._snapshots.get(replica)
                if since is not None and rate > 0:
                    self.generated.append((since, now, rate))
                self._snapshots[replica] = now
            case c.Down():
                self._down(now, event)
            case c.Up(role=role, id=member):
                for fault in self.faults:
                    if (fault.role, fault.member) == (role, member) and fault.up_s is None:
                        fault.up_s = now
            case _:
                pass
        for command in commands:
            self._command(now, command, controller)
        self.interruptions += interruptions(now, commands, controller)
        self.fates.observe(event, commands, controller)
        self._evaluated(now, controller)
        self._count(now, controller)

    def interrupted(self, why: Why) -> list[Interruption]:
        """The interruptions of one kind."""
        return [each for each in self.interruptions if each.why is why]

    def trained(self, controller: Controller) -> list[Batch]:
        """The batches behind the trainer's weights, in order: those that a crash undid are left out."""
        kept = [batch for version, batch in self.batches.items() if version in controller.learner.batches]
        return sorted((batch for batch in kept if batch.ended_s is not None), key=lambda batch: batch.version)

    def _command(self, now: float, command: c.Command, controller: Controller) -> None:
        match command:
            case c.Step():
                self.batches[command.version] = _batch(now, command, controller)
            case c.Publish(version=version):
                self.versions.setdefault(version, Version(version, now))
            case c.Pull(replica=replica, version=version):
                self._pulling[replica] = (version, now)
            case _:
                pass

    def _down(self, now: float, event: c.Down) -> None:
        self.faults.append(Fault(now, event.role, event.id, event.reason))
        if event.role == REPLICA:
            self._pulling.pop(event.id, None)
            self._snapshots.pop(event.id, None)

    def _evaluated(self, now: float, controller: Controller) -> None:
        for result in controller.evaluations.results[len(self.evaluations) :]:
            step = controller.learner.batches.get(result.version, controller.learner.step)
            self.evaluations.append(TimedEvaluation(now, step, result))

    def _count(self, now: float, controller: Controller) -> None:
        ledger = controller.ledger
        counts = (len(ledger.buffered), ledger.generating)
        if not self.occupancy or self.occupancy[-1][1:] != counts:
            self.occupancy.append((now, *counts))


def _batch(now: float, command: c.Step, controller: Controller) -> Batch:
    members = controller.ledger.batch(command.version)
    trainer = controller.learner.version
    versions = [member.version if member.version is not None else trainer for member in members]
    return Batch(
        command.version,
        lengths=[member.tokens for member in members],
        at_consumption=[trainer - version for version in versions],
        at_completion=[
            max(0, member.completed_at - version) for member, version in zip(members, versions, strict=True)
        ],
        began_s=now,
    )
