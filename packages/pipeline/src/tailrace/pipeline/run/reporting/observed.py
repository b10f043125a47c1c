"""What a log shows and the metrics do not say: batches, interruptions, versions, evaluations, what is buffered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.run.history import History
from tailrace.pipeline.run.reporting.answers import Answers, TimedEvaluation
from tailrace.pipeline.run.reporting.interruptions import Interruption, Kind


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
class Version:
    """A published weight version: when it was ordered, when the relays held it, how replicas pulled it."""

    version: int
    ordered_s: float
    published_s: float | None = None
    pulls_s: list[float] = field(default_factory=list)


class Observed:
    """Observes a log."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.interruptions: list[Interruption] = []
        self.versions: dict[int, Version] = {}
        self._answers = Answers()
        self.occupancy: list[tuple[float, int, int]] = []
        self.first_pulled_s: float | None = None
        self._pulling: dict[str, float] = {}

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], history: History) -> None:
        """One instant, which the history has taken in."""
        for event in events:
            self._event(now, event)
        for command in commands:
            match command:
                case c.Step(version=version):
                    self.batches[version] = _batch(now, version, history)
                case c.Publish(version=version):
                    self.versions.setdefault(version, Version(version, now))
                case c.Pull(replica=replica):
                    self._pulling[replica] = now
                case c.Interrupt(replica=replica):
                    served = history.member(REPLICA, replica).version
                    self.interruptions.append(Interruption.of(now, command, served))
                case _:
                    pass
        self._answers.observe(events, commands, history)
        counts = (history.buffered, history.generating)
        if not self.occupancy or self.occupancy[-1][1:] != counts:
            self.occupancy.append((now, *counts))

    @property
    def evaluations(self) -> list[TimedEvaluation]:
        """Evaluations that are complete."""
        return self._answers.done

    def interrupted(self, kind: Kind) -> list[Interruption]:
        """The interruptions of one kind."""
        return [each for each in self.interruptions if each.kind is kind]

    def trained(self, history: History) -> list[Batch]:
        """The batches behind the trainer's weights, in order: those that a crash undid are left out."""
        kept = [batch for version, batch in self.batches.items() if version in history.made]
        return sorted((batch for batch in kept if batch.ended_s is not None), key=lambda batch: batch.version)

    def _event(self, now: float, event: c.Event) -> None:
        match event:
            case c.Stepped(version=version) if version in self.batches:
                self.batches[version].ended_s = now
            case c.Published(version=version) if version in self.versions:
                published = self.versions[version]
                published.published_s = now if published.published_s is None else published.published_s
            case c.Pulled(replica=replica, version=version):
                self.first_pulled_s = now if self.first_pulled_s is None else self.first_pulled_s
                ordered_s = self._pulling.pop(replica, None)
                if ordered_s is not None and version in self.versions:
                    self.versions[version].pulls_s.append(now - ordered_s)
            case c.Up(role=role, id=member) if role == REPLICA:
                self._pulling.pop(member, None)
            case _:
                pass


def _batch(now: float, version: int, history: History) -> Batch:
    members, trainer = history.batch(version), history.version
    versions = [trainer if member.version is None else member.version for member in members]
    return Batch(
        version,
        lengths=[member.tokens for member in members],
        at_consumption=[trainer - oldest for oldest in versions],
        at_completion=[max(0, member.completed_at - at) for member, at in zip(members, versions, strict=True)],
        began_s=now,
    )
