"""What provisioning sees of iterations: the seconds of generation and of training in each, and the lengths of responses.

    an instant ──► who has worked since the last one? ──► seconds of each replica, and of the trainer
    Stepped    ──► one record, and the next iteration begins

The first iteration of a run is none: members start in it. Nor is the one in which the driver died.
"""

from __future__ import annotations

from collections import deque

from tailrace import contracts as c
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.trainer_state import TrainerState
from tailrace.pipeline.spec import PipelineSpec

_LENGTHS = 4_096


class Iterations:
    """Watches iterations for a provisioning policy that asks for it (`WatchesIterations`); otherwise it does nothing."""

    def __init__(self, spec: PipelineSpec, fleet: Replicas, trainer: TrainerState) -> None:
        policy = spec.provisioning
        self.used = isinstance(policy, c.WatchesIterations)
        self.records: deque[c.IterationRecord] = deque(
            maxlen=policy.iterations if isinstance(policy, c.WatchesIterations) else 0
        )
        self.lengths: deque[int] = deque(maxlen=_LENGTHS if self.used else 0)
        self._fleet, self._trainer = fleet, trainer
        self._looked_s = 0.0
        self._began_s: float | None = None
        self._busy_s: dict[str, float] = {}
        self._training_s, self._finished = 0.0, 0
        self._served: tuple[str, ...] = ()
        self._same = True

    def passed(self, now: float) -> None:
        """Note who has worked since the last instant. Call it before the events of this one are taken in."""
        if not self.used:
            return
        since, self._looked_s = now - self._looked_s, now
        if self._began_s is None:
            return
        for replica in self._fleet.replicas.values():
            if len(replica.assigned) + len(replica.away) > replica.evaluating:
                self._busy_s[replica.id] = self._busy_s.get(replica.id, 0.0) + since
        if self._trainer.making is not None:
            self._training_s += since
        self._same = self._same and self._trainer.up and self._serving() == self._served

    def finished(self, tokens: int) -> None:
        """Note the length of a response."""
        if self.used:
            self.lengths.append(tokens)
            self._finished += 1

    def stepped(self, now: float, version: int) -> None:
        """Note that the step that made a version is done."""
        if not self.used:
            return
        if self._began_s is not None:
            replicas = len(self._served) if self._same else 0
            busiest_s = max(self._busy_s.values(), default=0.0)
            seconds = now - self._began_s
            self.records.append(
                c.IterationRecord(version, seconds, busiest_s, self._training_s, replicas, self._finished)
            )
        self._forget()
        self._began_s, self._served = now, self._serving()

    def restarted(self) -> None:
        """Forget the iteration in which the driver died: its seconds say nothing."""
        self._forget()

    def _forget(self) -> None:
        self._began_s, self._busy_s, self._training_s, self._finished = None, {}, 0.0, 0
        self._served, self._same = (), True

    def _serving(self) -> tuple[str, ...]:
        """Replicas that are up and have pulled a version, so that they share in the work."""
        return tuple([replica.id for replica in self._fleet.up() if replica.version is not None])
