"""A short real run with measured roles: the configuration's own pipeline, engine, trainer and host, for a few steps.

RunConfig ──► prepare ──► roles with clocks ──► executor ──► Measured
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.view import RunView
from tailrace.fleetsim.profile.samples import ReplicaSamples, TrainerSamples
from tailrace.fleetsim.workload.workload import Turns
from tailrace.pipeline.config.models import Choice, RunConfig
from tailrace.pipeline.roles.prompts import Prompts
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.figures.metrics import MetricsObserver
from tailrace.pipeline.run.figures.stages import CompleteResponses
from tailrace.pipeline.run.figures.status import StatusObserver
from tailrace.runtime.executor.deployment import DATA, REPLICA, TRAINER, Deployment
from tailrace.runtime.executor.executor import Executor

Usage = dict[int, float]
"""Processor seconds since its start, by process."""
PROC = Path("/proc")
_PARENT, _USER, _SYSTEM = 1, 11, 12  # fields after the name in /proc/PID/stat
_IDLE, _WAITING, _GUEST = 3, 4, 8  # fields after "cpu" in /proc/stat; guests' time is included in user time too


# Processor time by process, from Linux' ``/proc``. On other systems no process and no core counts as in use.


def usage(root: int | None = None, proc: Path = PROC) -> Usage:
    """Processor seconds of a process and all its descendants; of this process by default."""
    root = os.getpid() if root is None else root
    spent: Usage = {}
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit() and (found := _stat(entry / "stat")) is not None:
            pid = int(entry.name)
            spent[pid] = (int(found[_USER]) + int(found[_SYSTEM])) * _tick_s()
            children.setdefault(int(found[_PARENT]), []).append(pid)
    mine, left = [], [root]
    while left:
        pid = left.pop()
        mine.append(pid)
        left += children.get(pid, [])
    return {pid: spent[pid] for pid in mine if pid in spent}


def machine_s(proc: Path = PROC) -> float:
    """Processor seconds that all processes of the machine have used since it started."""
    try:
        fields = [int(field) for field in (proc / "stat").read_text().splitlines()[0].split()[1:]]
    except (OSError, IndexError):
        return 0.0
    return (sum(fields[:_GUEST]) - fields[_IDLE] - fields[_WAITING]) * _tick_s()


class Others:
    """Cores used by programs other than a process and its descendants, from creation to the last `look`."""

    def __init__(self, root: int, proc: Path = PROC) -> None:
        self._root, self._proc = root, proc
        self._before = usage(root, proc)
        self._ours: Usage = dict(self._before)
        self._machine_s, self._at = machine_s(proc), time.monotonic()
        self.cores = 0.0

    def look(self) -> None:
        """Update the count. Call it often, since processes that start and end between two calls are missed."""
        self._ours |= usage(self._root, self._proc)
        ours = sum(spent - self._before.get(pid, 0.0) for pid, spent in self._ours.items())
        passed = time.monotonic() - self._at
        if passed > 0:
            self.cores = max(0.0, (machine_s(self._proc) - self._machine_s - ours) / passed)


def cores_here() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _tick_s() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK")


def _stat(path: Path) -> list[str] | None:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:  # the process has ended meanwhile
        return None


Progress = Callable[[str, float | None], None]
"""Called with the current phase and the share of it that is done."""

SETTLED_STEP = 3  # before this step, processor time is start-up: imports, first allocations
SHARES = (0.125, 0.25, 0.5, 1.0)  # shares of a batch, for the trainer's time by tokens
REPEATS = 3
OTHER_PROMPTS = 1_000_003
"""Added to a run's seed where prompts are shuffled."""
HURRY_S = 3.0  # deadline for members to close after a failed run


@dataclass(slots=True)
class MeasuredTrajectory:
    """The outcome of one trajectory.

    Args:
        version: the version at which it was first routed.
        score_s: seconds that its score took.
        turns: tokens of each turn, and the seconds until its environment had answered; 0 after the last.
    """

    group: int
    purpose: c.Purpose
    version: int
    tokens: int = 0
    reward: float | None = None
    score_s: float = 0.0
    turns: Turns = ()


@dataclass(slots=True)
class MeasuredRun:
    """All measurements of a short run. Times are on the run's clock, except those in samples.

    Args:
        zero_s: the machine's monotonic clock when the run's clock showed 0.
        prompts: number of prompt tokens of each training group.
        usages: processor time by process, at the steps from `SETTLED_STEP` on.
        others: processor time of programs outside the run.
    """

    config: RunConfig
    cores: int
    zero_s: float
    replicas: dict[str, ReplicaSamples] = field(default_factory=dict)
    trainer: TrainerSamples = field(default_factory=TrainerSamples)
    log: list[tuple[float, c.Event]] = field(default_factory=list)
    sent: list[tuple[float, c.Command]] = field(default_factory=list)
    trajectories: dict[str, MeasuredTrajectory] = field(default_factory=dict)
    prompts: dict[int, int] = field(default_factory=dict)
    usages: list[tuple[float, Usage]] = field(default_factory=list)
    others: Others | None = None


class _Witness:
    """An observer that keeps events and commands, and looks at the processors after each step."""

    def __init__(self, measured: MeasuredRun, progress: Progress, steps: int) -> None:
        self._measured, self._progress, self._steps = measured, progress, steps
        self._serves: dict[str, int] = {}
        self._responses, self._turns = CompleteResponses(), MeasuredTurns()

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        measured = self._measured
        measured.log += ((now, event) for event in events)
        measured.sent += ((now, command) for command in commands)
        for event in events:
            self._note(event, now, run)
        for command in commands:
            if isinstance(command, c.Route):
                self._responses.routed(command.trajectories)
                self._turns.routed(command.trajectories)
                version = self._serves[command.replica]
                for ref in command.trajectories:
                    measured.trajectories.setdefault(
                        ref.trajectory, MeasuredTrajectory(ref.prompt, ref.purpose, version)
                    )

    def _note(self, event: c.Event, now: float, run: RunView) -> None:
        measured = self._measured
        complete = self._responses.heard(event)
        if complete is not None and complete[0] in measured.trajectories:
            measured.trajectories[complete[0]].tokens = complete[1]
        turns = self._turns.heard(now, event)
        if turns is not None and complete is not None and complete[0] in measured.trajectories:
            measured.trajectories[complete[0]].turns = turns
        if isinstance(event, c.Pulled):
            self._serves[event.replica] = event.version
        elif isinstance(event, c.Scored):
            if event.trajectory in measured.trajectories:
                measured.trajectories[event.trajectory].reward = event.reward
                measured.trajectories[event.trajectory].score_s = event.seconds
        elif isinstance(event, c.Stepped):
            self._progress(f"step {run.step} of {self._steps}", run.step / self._steps)
            if run.step >= SETTLED_STEP:
                measured.others = measured.others or Others(os.getpid())
                measured.others.look()
                measured.usages.append((now, usage()))

    def tick(self, now: float, executor: Executor) -> None:
        del now, executor


def measure(config: RunConfig, directory: RunDirectory, steps: int, progress: Progress) -> MeasuredRun:
    """Run for a few steps and note everything.

    Raises:
        TailraceError: the configuration is wrong, or the run failed.
    """
    from tailrace.paramserver import new_token
    from tailrace.pipeline.run.build import build_deployment, build_host, build_spec, check
    from tailrace.pipeline.run.launching.early_processes import ImportsAhead, keep_bytecode
    from tailrace.pipeline.run.prepare import cache_directory, prepare

    check(config)
    config = shortened(config, steps)
    keep_bytecode(cache_directory())
    with ImportsAhead():
        prepared = prepare(config, directory, lambda row: progress(str(row["phase"]), _share(row)))
    deployment = measured_roles(build_deployment(config, prepared, directory, token=new_token()), config.seed)
    progress("starting roles", None)
    measured = MeasuredRun(config, cores_here(), 0.0)
    controller = Controller(build_spec(config), relays=config.relay.count)
    # A run's usual observers are included, since they use the cores too.
    metrics = MetricsObserver(directory.metrics)
    status = StatusObserver(directory.status, app=config.app, run_dir=directory.root)
    witness = _Witness(measured, progress, config.pipeline.steps)
    executor = Executor(build_host(config), deployment, observers=[metrics, status, witness])
    measured.zero_s = time.monotonic() - executor.now()
    try:
        with EventLog(directory.events) as log:
            executor.run(controller, log)
        progress("updates of several sizes", None)
        _collect(measured, executor)
    except BaseException:
        executor.close(patience_s=HURRY_S)
        raise
    finally:
        metrics.close()
    executor.close()
    everything = measured.trajectories.values()
    training = {trajectory.group for trajectory in everything if trajectory.purpose is c.Purpose.TRAIN}
    measured.prompts = _prompt_tokens(Prompts(deployment.roles[DATA].settings.prompts), training)
    return measured


def shortened(config: RunConfig, steps: int) -> RunConfig:
    """The same run with fewer steps, without the controls and without scripted faults.

    And without rounds, since a round sees only what is quick: the groups to be measured are all that the model generates. With
    them goes what belongs to rounds, devices that change hands and gradients of parts of a batch. The trainer is one process,
    whose updates of whole batches are timed; a simulation of several divides a batch among them.
    """
    from tailrace.pipeline.run.build import build_spec

    spec = build_spec(config)
    update: dict[str, Any] = {"steps": min(steps, config.pipeline.steps)}
    if spec.batching.open().launches_rounds():
        update["batching"] = Choice(name="plain")
    if spec.provisioning.round_milestones() is not None:
        update["provisioning"] = Choice(name="static")
    if spec.training.early_gradients() is not None:
        update["training"] = Choice(name="full-batch")
    pipeline = config.pipeline.model_copy(update=update)
    trainer = config.trainer.model_copy(update={"processes": 1, "cells": 1, "colocated": False})
    evaluation = config.evaluation.model_copy(update={"controls": False})
    return config.model_copy(update={"pipeline": pipeline, "trainer": trainer, "evaluation": evaluation, "faults": ()})


def measured_roles(deployment: Deployment, seed: int) -> Deployment:
    """The same roles with clocks, on other prompts, since a prediction must not know the prompts of the predicted run."""
    from tailrace.fleetsim.profile.measured_roles import MeasuredReplica, MeasuredTrainer

    data, trainer, replica = (deployment.roles[role] for role in (DATA, TRAINER, REPLICA))
    prompts = dataclasses.replace(data.settings.prompts, shuffle_seed=seed + OTHER_PROMPTS)
    return dataclasses.replace(
        deployment,
        roles={
            **deployment.roles,
            DATA: data.having(dataclasses.replace(data.settings, prompts=prompts)),
            TRAINER: dataclasses.replace(trainer, factory=MeasuredTrainer),
            REPLICA: dataclasses.replace(replica, factory=MeasuredReplica),
        },
    )


def _collect(measured: MeasuredRun, executor: Executor) -> None:
    from tailrace.fleetsim.profile.measured_roles import REPLICA_SAMPLES, TRAINER_SAMPLES

    deadlines = measured.config.deadlines
    groups = sorted({max(1, round(share * measured.config.pipeline.prompts_per_step)) for share in SHARES})
    trainer = executor.host.caller(TRAINER)
    TRAINER_SAMPLES.open(trainer, deadlines.step_s).measure_sizes(groups, REPEATS)
    measured.trainer = TRAINER_SAMPLES.open(trainer, deadlines.score_s).samples()
    for role, name in executor.members:
        if role == REPLICA:
            replica = REPLICA_SAMPLES.open(executor.host.caller(REPLICA, name), deadlines.score_s)
            measured.replicas[name] = replica.samples()


def _prompt_tokens(prompts: Prompts, groups: set[int]) -> dict[int, int]:
    return {prompt: len(prompts.encode(c.TrajectoryRef("", prompt, 0, prompt=prompt))) for prompt in groups}


def _share(row: object) -> float | None:
    steps = row.get("steps") if isinstance(row, dict) else None
    return row["step"] / steps if isinstance(row, dict) and steps else None


# The turns of a run's responses, by its events: what the model wrote in each, and how long its environment took.
#
# TurnEnded ──► the environment, with its queue ──► Turned ──► the next turn ... ──► Finished, or Turned with `done`


class MeasuredTurns:
    """A fold. What environments answered is no part of a turn's tokens.

    The seconds of a turn are those from the report of its end to the report of its answer, so that a queue before the
    environment is in them. The last turn has none: whoever ends the trajectory, its reward is what follows.
    """

    def __init__(self) -> None:
        self._turns: dict[str, list[tuple[int, float]]] = {}
        self._open: dict[
            str, tuple[float, int]
        ] = {}  # when a turn ended that is not answered, and all tokens until then
        self._total: dict[str, int] = {}  # all tokens until the last answer, that answer included

    def routed(self, refs: Iterable[c.TrajectoryRef]) -> None:
        """Take in what is routed: what has no tokens begins, perhaps anew."""
        for ref in refs:
            if not ref.kept:
                self._forget(ref.trajectory)

    def heard(self, now: float, event: c.Event) -> Turns | None:
        """The turns of the response that is complete with this event."""
        if isinstance(event, c.TurnEnded):
            self._open.setdefault(event.trajectory, (now, event.tokens))
        elif isinstance(event, c.Turned) and event.trajectory in self._open:
            ended_s, tokens = self._open.pop(event.trajectory)
            return self._add(event.trajectory, tokens, event.tokens, now - ended_s, last=event.done)
        elif isinstance(event, c.Finished):
            return self._add(event.trajectory, event.tokens, event.tokens, 0.0, last=True)
        return None

    def _add(self, name: str, tokens: int, total: int, seconds: float, *, last: bool) -> Turns | None:
        turns = self._turns.setdefault(name, [])
        turns.append((tokens - self._total.get(name, 0), 0.0 if last else max(0.0, seconds)))
        self._total[name] = total
        if not last:
            return None
        self._forget(name)
        return tuple(turns)

    def _forget(self, name: str) -> None:
        for of in (self._turns, self._open, self._total):
            of.pop(name, None)
