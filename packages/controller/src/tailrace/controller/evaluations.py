"""Evaluations: held-out problems, answered by the next idle replica with a new enough version.

They run inside the pipeline, so training does not pause for them, and each result names the version that it measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.contracts import CallFailed, Purpose, Refused, Scored, ScoringFailed, same_rewards
from tailrace.controller.spec import EvaluationPlan
from tailrace.controller.trainer_state import TrainerState
from tailrace.controller.trajectories import TrajectoryState


@dataclass(slots=True)
class EvaluationResult:
    """What an evaluation measured. `rewards`, `correct`, `tokens` and `sources` have an entry for each problem that was scored.

    Args:
        version: the version that answered.
        mode: the decoding mode.
        step: batches that this version had been trained on.
        at_s: when the last answer was scored, in seconds on the run's clock.
        rewards: the rewards.
        correct: whether the answer is right; None where nobody says. A reward of 1 or 0 says so if the verifier does
            not (`same_rewards`).
        tokens: response tokens.
        failed: problems whose verifier failed, that the engine refused, or whose environment did not answer.
        sources: the source of each problem; empty where all are of one.
    """

    version: int
    mode: str
    step: int = 0
    at_s: float = 0.0
    rewards: list[float] = field(default_factory=list)
    correct: list[bool | None] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    failed: int = 0
    sources: list[str] = field(default_factory=list)

    def answered(self, tokens: int, reward: float, correct: bool | None, source: str = "") -> None:
        """Note the answer to a problem, and what its verifier said of it."""
        if correct is None:
            correct = next((known == 1.0 for known in (0.0, 1.0) if same_rewards((reward, known))), None)
        self.rewards.append(reward)
        self.correct.append(correct)
        self.tokens.append(tokens)
        self.sources.append(source)


@dataclass(slots=True)
class _Job:
    result: EvaluationResult
    problems: list[str]
    waiting: dict[str, None]


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
                self.running[f"{milestone}.{mode}"] = _Job(EvaluationResult(version, mode), ids, dict.fromkeys(ids))
                return [TrajectoryState(name, i, 0, Purpose.EVAL, mode, i) for i, name in enumerate(ids)]
        return []

    def scored(
        self,
        trajectory: TrajectoryState,
        event: Scored | ScoringFailed | Refused | CallFailed,
        trainer: TrainerState,
        now: float,
    ) -> Iterable[str]:
        """Note a verdict, or that there is none. Returns the ids to forget once the evaluation is complete."""
        key = next((key for key, job in self.running.items() if trajectory.id in job.waiting), None)
        if key is None:
            return ()
        job = self.running[key]
        result = job.result
        del job.waiting[trajectory.id]
        if trajectory.version is not None:
            result.version = trajectory.version  # the version that answered, if a crash lost the wanted one
        if isinstance(event, Scored):
            source = self.plan.source(trajectory.prompt)
            result.answered(trajectory.tokens, event.reward, event.correct, source)
        else:
            result.failed += 1
        if job.waiting:
            return ()
        del self.running[key]
        result.step, result.at_s = trainer.batches.get(result.version, trainer.step), now
        self.results.append(result)
        return job.problems

    @property
    def idle(self) -> bool:
        """Whether nothing is due or running."""
        return not self.due and not self.running
