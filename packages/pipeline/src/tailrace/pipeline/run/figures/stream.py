"""Figures of what runs beside each other, folded from a run's log: gradients beside generation, weights beside both.

lead      a batch's first gradient ──────────► its last token           > 0: training began while the batch was generated
exposed   the later of drained and Stepped ──► Pulled                   a replica had nothing to do but to wait for weights
          work is given to the trainer ──────► it is done publishing    the trainer copied weights, and work waited
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.figures.batches import mean

_PUBLISHING = "publishing"


@dataclass(slots=True)
class _Replica:
    running: set[str] = field(default_factory=set)
    drained_s: float = 0.0
    version: int | None = None
    exposed_s: float = 0.0

    def ended(self, name: str, now: float) -> None:
        if name in self.running:
            self.running.discard(name)
            self.drained_s = now


class StreamFigures:
    """A fold over the instants of a log.

    `leads_s` has, for each version that training made, the seconds from the moment when the trainer was given the first part of
    its batch until the batch's last token: below 0 where training waited for all of it. Where the trainer fell back, what it
    did again takes the place of what was undone.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._finished: dict[str, float] = {}
        self._stepped: dict[int, float] = {}
        self._given: dict[int, float] = {}  # when the first part of a batch was given
        self._last: dict[int, float] = {}  # when the last token of the parts of a batch came
        self.leads_s: dict[int, float] = {}
        self._publishing_s: float | None = None  # since when
        self._waiting_s: float | None = None  # since when the trainer has had work
        self.training_exposed_s = 0.0

    @property
    def generation_exposed_s(self) -> float:
        """Seconds in which a replica stood still for weights, the mean over replicas. Its first weights are not counted."""
        return mean([replica.exposed_s for replica in self._replicas.values()])

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        for event in events:
            match event:
                case c.Finished(replica=replica, trajectory=name):
                    self._finished[name] = now
                    self._of(replica).ended(name, now)
                case (
                    c.Interrupted(replica=replica, trajectory=name)
                    | c.Refused(replica=replica, trajectory=name)
                    | c.TurnEnded(replica=replica, trajectory=name)
                ):
                    self._of(replica).ended(name, now)
                case c.Turned(trajectory=name, done=True):
                    self._finished[name] = now
                case c.Stepped(version=version):
                    self._stepped[version], self._waiting_s = now, None
                    if version in self._given:
                        self.leads_s[version] = self._last.pop(version) - self._given.pop(version)
                case c.Accumulated():
                    self._waiting_s = None
                case c.Pulled(replica=replica, version=version):
                    self._pulled(self._of(replica), version, now)
                case c.Activity(role=role, phase=phase) if role == TRAINER:
                    self._trainer_at(phase, now)
                case c.Up(role=role, version=version) if role == TRAINER:
                    self._fall_back(version or 0)
                case c.Up(role=role, id=name) if role == REPLICA:
                    known = self._of(name)
                    known.version, known.running = None, set()
        for command in commands:
            match command:
                case c.Route(replica=replica, trajectories=refs):
                    self._of(replica).running.update(ref.trajectory for ref in refs)
                case c.Abort(trajectories=names):
                    for name in names:
                        self._finished.pop(name, None)
                        for known in self._replicas.values():
                            known.ended(name, now)
                case c.Accumulate(version=version, trajectories=names):
                    self._trains(version, names, now)
                case c.Step(version=version, mini_batches=parts):
                    self._trains(version, [name for part in parts for name in part], now)

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary."""
        return {
            "first_part_lead_s": round(mean(list(self.leads_s.values())), 3),
            "exposed_weight_s": round(self.generation_exposed_s + self.training_exposed_s, 3),
        }

    def _of(self, replica: str) -> _Replica:
        return self._replicas.setdefault(replica, _Replica())

    def _pulled(self, replica: _Replica, version: int, now: float) -> None:
        if replica.version is not None and not replica.running:
            replica.exposed_s += max(0.0, now - max(replica.drained_s, self._stepped.get(version, 0.0)))
        replica.version, replica.drained_s = version, now

    def _trainer_at(self, phase: str, now: float) -> None:
        if self._publishing_s is not None and self._waiting_s is not None:
            self.training_exposed_s += max(0.0, now - max(self._publishing_s, self._waiting_s))
        self._publishing_s = now if phase == _PUBLISHING else None

    def _trains(self, version: int, names: Iterable[str], now: float) -> None:
        self._given.setdefault(version, now)
        if self._waiting_s is None:
            self._waiting_s = now
        last = max([self._finished.pop(name, 0.0) for name in names], default=0.0)
        self._last[version] = max(last, self._last.get(version, 0.0))

    def _fall_back(self, version: int) -> None:
        self.leads_s = {made: lead for made, lead in self.leads_s.items() if made <= version}
        self._given, self._last = {}, {}
        self._publishing_s = self._waiting_s = None
