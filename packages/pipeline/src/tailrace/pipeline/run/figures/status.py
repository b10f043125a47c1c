"""The status of a run: the driver fills it, displays show it, and ``tailrace status`` reads it from the run directory."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.controller.view import RunView
from tailrace.faulttol import ROLES
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import read_json, write_json
from tailrace.pipeline.run.figures.batches import mean_counted, percentile
from tailrace.pipeline.run.figures.incidents import Incidents, NoSignal
from tailrace.pipeline.run.figures.results import Quantity, Results, results_of
from tailrace.runtime.executor.executor import Executor

WINDOW_STEPS = 10
WINDOW_ANSWERS = 512
ENDED = ("done", "failed", "interrupted")
"""Phases in which nothing of a run lives any more."""
MOST_INCIDENTS = 100
LOSSES = ("loss", "approx_kl", "entropy", "grad_norm")
_KEPT = (
    "step", "steps", "version", "reward", "losses", "accuracy", "accuracy_before", "held_out_reward",
    "held_out_reward_before", "staleness_mean", "staleness_max", "first_published_s", "trained_tokens_per_s",
)  # fmt: skip
"""What a run that goes on has from the driver before, until it is under way again."""


@dataclass(slots=True)
class RunStatus:
    """A run at a moment. Times in seconds, rates in tokens per second.

    `reward` is the mean reward of the batch that was trained on last. `accuracy` and `held_out_reward` are what was measured
    last on held-out problems, sampled, and before training; None where that is not known or the other says the same.
    `wall_s` is the time of the whole run: of all its drivers or, in a simulation, on its clock. `pooled` and `migrated` count
    trajectories, `blocked_cycles` the coordinator's cycles in a row that placed nothing although the pool was not empty, and
    `contradictions` snapshots that contradict the controller's state. `down` are members that are not up. `losses` are the
    trainer's figures of the last step, as far as it computes them. `given_up` are members that are not restarted any more while
    others do their work, each with `role`, `id`, `machine` and `reason`.
    `incidents` are the last ones, each with its text and its
    time `wall_s`; `incidents_total` counts all. `warning` says what keeps the run from training, though nothing is broken.
    `over` says that nothing of the pipeline runs any more. `delayed_groups` were dropped because training waited for them.
    `trained_tokens_per_s` counts response tokens from `first_published_s`, when the first version could be pulled, to the last
    step; of a simulation it is the throughput that was measured, once it is over. `recent_tokens_per_s` is that of the last ten
    steps. `restarts` counts members that failed and were restarted, by role.

    `turns` counts turns that ended, `waiting_turns` those that wait for a session. `environments` are the members that answer
    them, each with `workers` worker processes, `answer_p50_s` and `answer_p99_s` how long their last 512 answers took.
    `relays` says what each relay holds in memory, by its id. `seats` says where each process with devices of its own stands, by
    its name. `notes` are what members serve otherwise than their settings say, and why, a line each.
    """

    simulated: bool = False
    over: bool = False
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
    losses: dict[str, float] = field(default_factory=dict)
    accuracy: float | None = None
    accuracy_before: float | None = None
    held_out_reward: float | None = None
    held_out_reward_before: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    bound: int | None = None
    first_published_s: float | None = None
    trained_tokens_per_s: float | None = None
    recent_tokens_per_s: float | None = None
    generated_tokens_per_s: float = 0.0
    buffered_groups: int = 0
    pooled: int = 0
    blocked_cycles: int = 0
    trainer: str = "starting"
    replicas: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 0
    waiting_turns: int = 0
    answer_p50_s: float | None = None
    answer_p99_s: float | None = None
    environments: list[dict[str, Any]] = field(default_factory=list)
    workers: int = 0
    relays: dict[str, str] = field(default_factory=dict)
    seats: dict[str, str] = field(default_factory=dict)
    partial_rollout: bool = False
    interrupting_pulls: int = 0
    migrated: int = 0
    contradictions: int = 0
    repacks: int = 0
    replica_restarts: int = 0
    restarts: dict[str, int] = field(default_factory=dict)
    failed_groups: int = 0
    delayed_groups: int = 0
    cost_model: dict[str, Any] | None = None
    down: list[dict[str, str]] = field(default_factory=list)
    given_up: list[dict[str, str]] = field(default_factory=list)
    members: list[dict[str, Any]] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    warning: str = ""
    notes: list[str] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    incidents_total: int = 0

    def take_from(self, run: RunView) -> None:
        """Take over what the log tells of the run so far, which needs none of its processes."""
        self.step, self.version, self.steps, self.bound = run.step, run.version, run.steps, run.bound
        consumed = run.staleness_at_consumption
        if consumed:
            self.staleness_max, self.staleness_mean = max(consumed), mean_counted(consumed)
        self.buffered_groups, self.pooled, self.blocked_cycles = run.buffered, run.pooled, run.blocked_cycles
        self.partial_rollout, self.interrupting_pulls = run.mixes_versions, run.interrupting_pulls
        self.migrated, self.repacks, self.contradictions = run.evictions, run.moves, run.contradictions
        self.restarts = {role: count for role in ROLES if (count := run.restarts(role))}
        self.replica_restarts, self.given_up = run.replica_restarts, run.given_up
        self.failed_groups, self.delayed_groups, self.turns = run.counts.failed, run.counts.delayed, run.counts.turns
        self.cost_model, self.notes = run.cost_model, run.notes()

    def rest(self) -> None:
        """Nothing generates, trains or is waited for any more."""
        self.over, self.left_s, self.trainer, self.generated_tokens_per_s = True, None, "", 0.0
        self.recent_tokens_per_s = None
        self.replicas, self.members, self.waits, self.down = [], [], [], []
        self.environments, self.waiting_turns, self.warning, self.relays, self.seats = [], 0, "", {}, {}


class StatusObserver:
    """Keeps a `RunStatus` up to date, writes it to a file and tells a listener.

    Args:
        path: ``status.json``.
        app: the app's name.
        run_dir: the run directory.
        listener: called after each change that users should see.
        simulated: `RunStatus.wall_s` is what the run's clock showed last; of a real run it is the time of all its drivers.
        every_s: least seconds of real time between two writes within a phase.
        steps: batches after which the run is stopped; None: those of its pipeline.
        workers: see `RunStatus`.
    """

    def __init__(
        self,
        path: Path,
        *,
        app: str,
        run_dir: Path,
        listener: Callable[[RunStatus], None] | None = None,
        simulated: bool = False,
        every_s: float = 0.0,
        steps: int | None = None,
        workers: int = 0,
    ) -> None:
        before = _before(path)
        known = {name: before[name] for name in _KEPT if name in before}
        self.status = RunStatus(app=app, run_dir=str(run_dir), pid=os.getpid(), simulated=simulated, **known)
        self.status.workers = workers
        self._path, self._listener, self._every_s = path, listener, every_s
        self._now, self._began = 0.0, time.monotonic() - float(before.get("wall_s", 0.0))
        self._run: RunView | None = None
        self._last_step = steps
        self._evaluations = 0
        self._written = -math.inf
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW_STEPS + 1)
        self._ended_s: dict[int, float] = {}  # each step: one that is done again ends again
        self._rates: dict[str, float] = {}
        self._answers: deque[float] = deque(maxlen=WINDOW_ANSWERS)
        self._incidents, self._no_signal = Incidents(), NoSignal()
        self._lock = threading.Lock()
        self.follows = True
        """Whether events and ticks belong to the run; False while controls are evaluated."""

    def phase(self, name: str, detail: str = "", *, left_s: float | None = None, progress: float | None = None) -> None:
        """Set the phase, or the progress within one as a share from 0 to 1."""
        if name in ENDED:
            self.settle()
        status = self.status
        status.phase, status.detail, status.left_s, status.progress = name, detail, left_s, progress
        self._tell()

    def settle(self, run: RunView | None = None) -> None:
        """Take in the last instant: what comes after it, such as controls, is not the run's.

        Args:
            run: the run's final state, if nothing of it was observed here.
        """
        with self._lock:
            self._run = self._run or run
            if self.follows and self._run is not None:
                self._refresh(self._run)
            self.follows = False
            self.status.rest()

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Update the status from events."""
        status, self._now = self.status, now
        self._hear(self._incidents.lines(now, events, commands, run.occupied))
        if not self.follows:
            return
        self._run = run
        rewards = [event.reward for event in events if isinstance(event, c.Scored)]
        equal = run.counts.filtered_because.get(c.Why.NO_SIGNAL, 0)
        self._hear(self._no_signal.lines(run.counts.completed, equal, rewards))
        status.warning = self._no_signal.warning
        for event in events:
            if isinstance(event, c.Snapshot):
                self._rates[event.replica] = event.tokens_per_s
            elif isinstance(event, c.Turned):
                if event.seconds:  # otherwise a member that is gone took them
                    self._answers.append(event.seconds)
            elif isinstance(event, c.Published):
                if status.first_published_s is None:
                    status.first_published_s = now
            elif isinstance(event, c.Stepped):
                self._ended_s[run.step_of(event.version)] = now
                status.reward = event.metrics.get("reward_mean", status.reward)
                status.losses = {name: event.metrics[name] for name in LOSSES if name in event.metrics}
                self._steps.append((now, run.counts.trained_tokens))
        for one in (*events, *commands):
            if isinstance(one, c.Down | c.Restart | c.Stop) and one.role == REPLICA:
                self._rates.pop(one.id, None)
            elif isinstance(one, c.Resize):
                self._rates.pop(one.replica, None)

    def tick(self, now: float, executor: Executor) -> None:
        """Refresh and write, unless that was just done."""
        self._now = now
        if time.monotonic() - self._written >= self._every_s:
            if self.follows:
                visible = executor.visible()
                self.status.members, self.status.waits = visible["members"], visible["waits"]
            self._tell()

    def _hear(self, incidents: Sequence[str]) -> None:
        status = self.status
        for text in incidents:
            status.incidents = [*status.incidents[1 - MOST_INCIDENTS :], {"wall_s": self._wall_s(), "text": text}]
            status.incidents_total += 1

    def _refresh(self, run: RunView) -> None:
        status, steps = self.status, self._steps
        status.take_from(run)
        if self._last_step is not None:
            status.steps = self._last_step
        if len(run.evaluations) != self._evaluations:
            self._evaluations = len(run.evaluations)
            show_results(status, results_of(run.evaluations, baseline=""))
        status.generated_tokens_per_s = sum(self._rates.values())
        status.down = run.members_down()
        healths = [member["health"] for member in status.down if member["role"] == TRAINER]
        status.trainer = healths[0] if healths else "waiting for a batch" if run.trainer_up else "starting"
        if run.making is not None:
            status.trainer = f"training version {run.making}"
        status.replicas = [asdict(replica) for replica in run.replicas()]
        status.environments = [asdict(each) for each in run.environments()]
        status.relays = run.relays()
        status.seats = {name: str(seat) for name, seat in run.seats()}
        status.waiting_turns = run.waiting_turns
        if self._answers:
            answers = sorted(self._answers)
            status.answer_p50_s, status.answer_p99_s = percentile(answers, 0.5), percentile(answers, 0.99)
        trained_s = self._ended_s.get(run.step, 0.0) - (status.first_published_s or 0.0)
        if trained_s > 0 and not status.simulated:
            status.trained_tokens_per_s = run.counts.trained_tokens / trained_s
        if len(steps) > 1:
            (first_s, before), (last_s, after) = steps[0], steps[-1]
            status.recent_tokens_per_s = max(0.0, (after - before) / max(last_s - first_s, 1e-9))
            if status.phase == "training":
                status.left_s = (last_s - first_s) / (len(steps) - 1) * (status.steps - status.step)

    def _wall_s(self) -> float:
        return self._now if self.status.simulated else time.monotonic() - self._began

    def _tell(self) -> None:
        with self._lock:  # progress of other work comes from another thread
            self._written = time.monotonic()
            if self.follows and self._run is not None:
                self._refresh(self._run)
            self.status.updated_at = time.time()
            self.status.wall_s = self._wall_s()
            write_json(self._path, asdict(self.status))
            if self._listener is not None:
                self._listener(self.status)


def _before(path: Path) -> dict[str, Any]:
    """What the driver before wrote last; empty if there was none, or if a crash of the machine left nothing whole of it."""
    try:
        return read_json(path)
    except RunDirectoryError:
        return {}


def show_results(status: RunStatus, results: Results) -> None:
    """Set the newest accuracy and reward on held-out problems, and those before training; None for what is not shown."""
    newest, before = results.curve[-1] if results.curve else None, results.before
    for quantity, name in ((Quantity.ACCURACY, "accuracy"), (Quantity.REWARD, "held_out_reward")):
        shown = quantity in results.quantities
        setattr(status, name, newest.estimate(quantity).value if shown and newest else None)
        setattr(status, f"{name}_before", before.estimate(quantity).value if shown and before else None)
