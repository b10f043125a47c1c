"""Evaluations: held-out problems, answered by the next idle replica with a new enough version.

They run inside the pipeline, so training does not pause for them, and each result names the version that it measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.contracts import Purpose
from tailrace.pipeline.controller.states import TrajectoryState
from tailrace.pipeline.spec import EvaluationPlan


@dataclass(slots=True)
class EvaluationResult:
    """One finished evaluation: the accuracy over its problems, and the response tokens of each scored one."""

    version: int
    mode: str
    accuracy: float
    problems: int
    failed: int
    tokens: list[int]


@dataclass(slots=True)
class _Job:
    version: int
    mode: str
    problems: list[str]
    waiting: dict[str, None]
    rewards: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    failed: int = 0


@dataclass(slots=True)
class Evaluations:
    """Which evaluations are due, running and done."""

    plan: EvaluationPlan
    due: list[tuple[int, str]] = field(default_factory=list)
    running: dict[str, _Job] = field(default_factory=dict)
    results: list[EvaluationResult] = field(default_factory=list)

    def at(self, version: int, step: int, last_step: int) -> None:
        """Queue the evaluations that are due when the trainer has made `version` after `step` batches."""
        if not self.plan.size:
            return
        modes: list[str] = []
        if step in (0, last_step) or (self.plan.every and step % self.plan.every == 0):
            modes += self.plan.modes
        if step == 0:
            modes += self.plan.first
        if step == last_step:
            modes += self.plan.last
        known = {(result.version, result.mode) for result in self.results}
        for mode in dict.fromkeys(modes):
            if (
                (version, mode) not in known
                and (version, mode) not in self.due
                and f"{version}.{mode}" not in self.running
            ):
                self.due.append((version, mode))

    def start(self, version: int) -> list[TrajectoryState]:
        """Start the next evaluation that a replica on `version` can answer. Returns its trajectories; empty if none is due."""
        for index, (milestone, mode) in enumerate(self.due):
            if version >= milestone:
                del self.due[index]
                ids = [f"e{milestone}.{mode}.{problem}" for problem in range(self.plan.size)]
                self.running[f"{milestone}.{mode}"] = _Job(version, mode, ids, dict.fromkeys(ids))
                return [TrajectoryState(name, i, 0, Purpose.EVAL, mode, i) for i, name in enumerate(ids)]
        return []

    def scored(self, trajectory: TrajectoryState, reward: float | None) -> Iterable[str]:
        """Note a reward, or None if the verifier failed. Returns the ids to forget once the evaluation is complete."""
        key = next((key for key, job in self.running.items() if trajectory.id in job.waiting), None)
        if key is None:
            return ()
        job = self.running[key]
        del job.waiting[trajectory.id]
        if trajectory.version is not None:
            job.version = trajectory.version  # the version that answered, if a crash lost the wanted one
        if reward is None:
            job.failed += 1
        else:
            job.rewards.append(reward)
            job.tokens.append(trajectory.tokens)
        if job.waiting:
            return ()
        del self.running[key]
        accuracy = sum(job.rewards) / len(job.rewards) if job.rewards else 0.0
        self.results.append(EvaluationResult(job.version, job.mode, accuracy, len(job.rewards), job.failed, job.tokens))
        return job.problems

    @property
    def idle(self) -> bool:
        """Whether nothing is due or running."""
        return not self.due and not self.running
