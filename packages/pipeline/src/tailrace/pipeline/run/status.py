"""What is going on: one object that the driver fills, a display shows and ``tailrace status`` reads from the run directory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.controller.controller import Controller
from tailrace.contracts import Health
from tailrace.pipeline.controller.fleet import ReplicaState
from tailrace.pipeline.executor.executor import Executor
from tailrace.pipeline.run.directory import read_json, write_json

WINDOW_STEPS = 10


@dataclass(slots=True)
class RunStatus:
    """A run at a moment. Times in seconds, rates in tokens per second.

    `pooled` and `migrated` count trajectories, `blocked_cycles` the coordinator's decisions in a row that placed nothing of a
    pool that held something, `contradictions` snapshots that showed something else than the controller believes.
    """

    phase: str = "starting"
    detail: str = ""
    app: str = ""
    run_dir: str = ""
    pid: int = 0
    updated_at: float = 0.0
    wall_s: float = 0.0
    left_s: float | None = None
    progress: float | None = None
    step: int = 0
    steps: int = 0
    version: int = 0
    reward: float | None = None
    accuracy: float | None = None
    accuracy_before: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    bound: int | None = None
    trained_tokens_per_s: float | None = None
    generated_tokens_per_s: float = 0.0
    buffered_groups: int = 0
    pooled: int = 0
    blocked_cycles: int = 0
    trainer: str = "starting"
    replicas: list[dict[str, Any]] = field(default_factory=list)
    partial_rollout: bool = False
    interrupting_pulls: int = 0
    migrated: int = 0
    contradictions: int = 0
    repacks: int = 0
    replica_restarts: int = 0
    failed_groups: int = 0
    members: list[dict[str, Any]] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)


class StatusObserver:
    """Keeps a `RunStatus` up to date, writes it to a file and tells a listener.

    Args:
        path: ``status.json``.
        listener: called after each change that a person should see.
    """

    def __init__(
        self, path: Path, *, app: str, run_dir: Path, listener: Callable[[RunStatus], None] | None = None
    ) -> None:
        self.status = RunStatus(app=app, run_dir=str(run_dir), pid=os.getpid())
        self._path, self._listener = path, listener
        self._zero = time.monotonic() - _wall_so_far(path)
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW_STEPS + 1)
        self._rates: dict[str, float] = {}
        self._lock = threading.Lock()
        self.follows = True
        """Whether events and ticks are the run's own; not while controls are evaluated."""

    def phase(self, name: str, detail: str = "", *, left_s: float | None = None, progress: float | None = None) -> None:
        """A new phase, or progress within one as a share."""
        status = self.status
        status.phase, status.detail, status.left_s, status.progress = name, detail, left_s, progress
        self._tell()

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """Note what the event says."""
        del commands
        status = self.status
        if not self.follows:
            return
        if isinstance(event, c.Snapshot):
            self._rates[event.replica] = event.tokens_per_s
        elif isinstance(event, c.Stepped):
            status.reward = event.metrics.get("reward_mean", status.reward)
            self._steps.append((now, controller.ledger.counts.trained_tokens))
            if len(self._steps) > 1:
                (first, before), (last, after) = self._steps[0], self._steps[-1]
                status.trained_tokens_per_s = max(0.0, (after - before) / max(last - first, 1e-9))
        elif isinstance(event, c.Down):
            self._rates.pop(event.id, None)

    def tick(self, now: float, executor: Executor) -> None:
        """Refresh from the controller and write."""
        del now
        if not self.follows:
            self._tell()
            return
        controller = executor.controller
        status, learner, counts = self.status, controller.learner, controller.ledger.counts
        status.step, status.steps, status.version = learner.step, controller.spec.steps, learner.version
        consumed = learner.staleness_at_consumption
        if consumed:
            status.staleness_max = max(consumed)
            status.staleness_mean = sum(lag * count for lag, count in consumed.items()) / sum(consumed.values())
        sampled = [result for result in controller.evaluations.results if result.mode == "sampled"]
        if sampled:
            status.accuracy_before, status.accuracy = sampled[0].accuracy, sampled[-1].accuracy
        status.generated_tokens_per_s = sum(self._rates.values())
        status.buffered_groups, status.pooled = len(controller.ledger.buffered), controller.ledger.pooled
        coordinator = controller.coordinator
        status.blocked_cycles, status.bound = coordinator.blocked_cycles, controller.gate.bound
        status.partial_rollout = controller.ledger.mixes_versions
        status.interrupting_pulls, status.migrated = coordinator.interrupting_pulls, coordinator.evictions
        status.contradictions = controller.fleet.contradictions
        status.trainer = (
            f"training version {learner.making}"
            if learner.making is not None
            else "waiting for a batch"
            if learner.up
            else "down"
        )
        status.replicas = [_replica(replica) for replica in controller.fleet.replicas.values()]
        status.repacks, status.replica_restarts = controller.moves, controller.replica_restarts
        status.failed_groups = counts.failed
        if len(self._steps) > 1 and status.steps:
            per_step = (self._steps[-1][0] - self._steps[0][0]) / (len(self._steps) - 1)
            status.left_s = per_step * (status.steps - status.step)
        visible = executor.visible()
        status.members, status.waits = visible["members"], visible["waits"]
        self._tell()

    def _tell(self) -> None:
        with self._lock:  # progress of work beside the run comes from a thread of its own
            self.status.updated_at = time.time()
            self.status.wall_s = time.monotonic() - self._zero
            write_json(self._path, asdict(self.status))
            if self._listener is not None:
                self._listener(self.status)


def _wall_so_far(path: Path) -> float:
    """Seconds that drivers of this run before us took."""
    return float(read_json(path)["wall_s"]) if path.exists() else 0.0


def _replica(replica: ReplicaState) -> dict[str, Any]:
    if replica.health is not Health.UP:
        doing = str(replica.health)
    elif replica.pulling is not None:
        doing = f"pulling version {replica.pulling}"
    elif replica.assigned:
        doing = "releasing" if replica.moving_out else "generating"
    else:
        doing = "idle"
    return {
        "id": replica.id,
        "doing": doing,
        "version": replica.version,
        "trajectories": len(replica.assigned),
        "kv": round(replica.kv, 3),
    }
