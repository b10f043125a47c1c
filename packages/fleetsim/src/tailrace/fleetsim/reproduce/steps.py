"""Where the time of each step of a simulation goes: rollout, scores, training; and what its responses were like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace import contracts as c
from tailrace.controller.view import RunView
from tailrace.fleetsim.host.recorder import Totals
from tailrace.runtime.executor.executor import Executor

if TYPE_CHECKING:
    from tailrace.fleetsim.host.simulator import Simulation


@dataclass(frozen=True, slots=True)
class StepParts:
    """One step. Seconds of rollout and scores mean something where no step overlaps another.

    Args:
        kind: kind of its round, ``"short"`` or ``"long"``; empty where there are no rounds.
        rollout_s: from the end of the step before until the last trajectory that is trained on has all its tokens.
        scored_s: from the end of the step before until the last score.
        step_s: from the end of the step before until its own.
        longest: response tokens of the longest trajectory that is trained on.
        token_s: seconds between two tokens of a trajectory (TPOT), mean over all that were generated, without time in a queue.
        tensor_parallel: devices of the largest replica as it was first given work.
        preemptions: in all engines.
        rollout_devices: devices of the replicas that are up at its end.
    """

    kind: str
    rollout_s: float
    scored_s: float
    step_s: float
    longest: int
    token_s: float
    tensor_parallel: int
    preemptions: int
    rollout_devices: int


class StepWatcher:
    """Collects the times of each step. See `tailrace.runtime.executor.executor.Observer`."""

    def __init__(self) -> None:
        self.simulation: Simulation | None = None
        self.steps: list[StepParts] = []
        self._finished: dict[str, tuple[float, int]] = {}
        self._scored: dict[str, float] = {}
        self._kind, self._tp = "", 0
        self._since_s = 0.0
        self._before = Totals()

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """One instant."""
        del run
        for event in events:
            if type(event) is c.Finished:
                self._finished[event.trajectory] = (now, event.tokens)
            elif type(event) is c.Scored:
                self._scored[event.trajectory] = now
            elif type(event) is c.Stepped:
                self._stepped(now)
        for command in commands:
            if type(command) is c.Route and not self._tp:
                self._kind, self._tp = self._begun()

    def tick(self, now: float, executor: Executor) -> None:
        """Nothing is periodic here."""

    def _stepped(self, now: float) -> None:
        """A step is done. It takes the place of one that the trainer fell back behind."""
        assert self.simulation is not None
        rows, since_s = self.simulation.rows, self._since_s
        batch, before, totals = rows[-1].names, self._before, self.simulation.world.recorder.totals(now)
        del self.steps[len(rows) - 1 :]
        self.steps.append(
            StepParts(
                kind=self._kind,
                rollout_s=max(self._finished[name][0] for name in batch) - since_s,
                scored_s=max(self._scored[name] for name in batch) - since_s,
                step_s=now - since_s,
                longest=max(self._finished[name][1] for name in batch),
                token_s=(totals.running_s - before.running_s) / (totals.generated_tokens - before.generated_tokens),
                tensor_parallel=self._tp,
                preemptions=totals.preemptions - before.preemptions,
                rollout_devices=sum(one.tp for one in self.simulation.models.replicas.values() if one.up),
            )
        )
        self._kind, self._tp, self._since_s, self._before = "", 0, now, totals

    def _begun(self) -> tuple[str, int]:
        """The kind of the round that begins, and the devices of the largest replica."""
        assert self.simulation is not None
        found, replicas = self.simulation.controller.rounds.view(), self.simulation.models.replicas.values()
        return "" if found is None else found.kind, max(replica.tp for replica in replicas if replica.up)
