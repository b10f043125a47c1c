"""What was measured on held-out problems: the curve, before and after training, and the controls without RL. Pure.

evaluations, in the order in which they were done ──► Results ──► status.json, summary.json, the report

Accuracy is the share of right answers. It is known where each answer is known to be right or wrong: because its verifier says
so, or because it earns 1 or 0. Otherwise there is only the reward, in the units of the verifier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from tailrace.contracts import same_rewards
from tailrace.controller.evaluations import EvaluationResult
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.figures.batches import mean, percentile, standard_error
from tailrace.pipeline.run.prepare import FORCED, FORCED_GREEDY, GREEDY, SAMPLED

_FORCED_NAMES = {FORCED: "worked style forced, sampled", FORCED_GREEDY: "worked style forced, greedy"}


class Quantity(StrEnum):
    """What an evaluation measures."""

    ACCURACY = "accuracy"
    REWARD = "reward"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class MeasuredAnswers:
    """One evaluation.

    Args:
        step: batches that the version had been trained on.
        at_s: when it was done, in seconds on the run's clock.
        problems: problems that were scored.
        reward: in the verifier's units; its error is the sample standard deviation over the root of the problems.
        accuracy: share of problems solved, 0 to 1, with its binomial error; None if it is not known.
        length_p50, length_p99: response tokens.
        sources: the same of each source's problems, by its name; empty where all are of one source.
    """

    name: str
    step: int
    at_s: float
    problems: int
    reward: Estimate
    accuracy: Estimate | None
    length_p50: float = 0.0
    length_p99: float = 0.0
    sources: Mapping[str, MeasuredAnswers] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, name: str, result: EvaluationResult) -> MeasuredAnswers:
        """What an evaluation of at least one scored problem measured."""
        names = filter(None, dict.fromkeys(result.sources))
        parts = {source: cls._of(name, result, source) for source in names}
        return replace(cls._of(name, result), sources=parts)

    @classmethod
    def _of(cls, name: str, result: EvaluationResult, source: str | None = None) -> MeasuredAnswers:
        """The same of one source's problems; None: of all."""
        chosen = [place for place in range(len(result.rewards)) if source is None or result.sources[place] == source]
        rewards = [result.rewards[place] for place in chosen]
        problems, lengths = len(chosen), sorted(result.tokens[place] for place in chosen)
        known = [correct for place in chosen if (correct := result.correct[place]) is not None]
        share = mean(known)
        error = math.sqrt(share * (1 - share) / max(1, problems))
        accuracy = Estimate(share, error) if known and len(known) == problems else None
        reward = Estimate(mean(rewards), standard_error(rewards))
        p50, p99 = percentile(lengths, 0.5), percentile(lengths, 0.99)
        return cls(name, result.step, result.at_s, problems, reward, accuracy, p50, p99)

    @property
    def without_accuracy(self) -> MeasuredAnswers:
        """The same, where other evaluations do not say what is right."""
        parts = {name: part.without_accuracy for name, part in self.sources.items()}
        return replace(self, accuracy=None, sources=parts)

    def estimate(self, quantity: Quantity) -> Estimate:
        """Its reward or its accuracy.

        Raises:
            LookupError: its accuracy is not known.
        """
        found = self.reward if quantity is Quantity.REWARD else self.accuracy
        if found is None:
            raise LookupError(f"the accuracy of {self.name!r} is not known")
        return found


@dataclass(frozen=True, slots=True)
class Results:
    """Accuracies before and after training, and of controls. Either the accuracy of all of them is known, or of none.

    Args:
        baseline: what training started from, in words.
        curve: the evaluations of sampled answers in the order of their steps.
        controls: what was measured without RL.
        unscored: answers that no verifier could score; they count neither way.
    """

    baseline: str
    curve: tuple[MeasuredAnswers, ...] = ()
    before: MeasuredAnswers | None = None
    after: MeasuredAnswers | None = None
    after_greedy: MeasuredAnswers | None = None
    controls: tuple[MeasuredAnswers, ...] = ()
    unscored: int = 0

    @property
    def listed(self) -> list[MeasuredAnswers]:
        """The measurements: before, after and every control."""
        found = (self.before, self.after, self.after_greedy, *self.controls)
        return [measured for measured in found if measured is not None]

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What is shown, what decides first. The reward is left out where it is the accuracy by another name."""
        found = [*self.curve, *self.listed]
        if not found:
            return ()
        if any(measured.accuracy is None for measured in found):
            return (Quantity.REWARD,)
        same = all(
            measured.accuracy is not None and same_rewards((measured.accuracy.value, measured.reward.value))
            for measured in found
        )
        return (Quantity.ACCURACY,) if same else (Quantity.ACCURACY, Quantity.REWARD)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the problems; empty where all are of one."""
        return tuple(dict.fromkeys(source for one in (*self.curve, *self.listed) for source in one.sources))

    @property
    def best_control(self) -> MeasuredAnswers | None:
        """The best without RL, however it was decoded. With controls, what RL started from is one of them."""
        if not self.quantities:
            return None
        decisive = self.quantities[0]
        start = (
            [] if self.before is None or not self.controls else [replace(self.before, name=f"{self.baseline}, sampled")]
        )
        return max([*self.controls, *start], key=lambda one: one.estimate(decisive).value, default=None)

    def plain(self) -> dict[str, Any]:
        """The results as plain data, without the curve."""
        found = asdict(self)
        del found["curve"]
        return found

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Results:
        """What `plain` made."""
        before, after, greedy = (_from_plain(found[key]) for key in ("before", "after", "after_greedy"))
        controls = tuple(filter(None, map(_from_plain, found["controls"])))
        return cls(found["baseline"], (), before, after, greedy, controls, found["unscored"])


def baseline(config: RunConfig) -> str:
    """What a run's training starts from, in words."""
    return "warm start" if config.model.path is None else "model as given"


def results_of(
    evaluations: Sequence[EvaluationResult], fine_tuned: Sequence[EvaluationResult] = (), *, baseline: str
) -> Results:
    """Sort the evaluations of a run.

    Args:
        evaluations: those of the run, in the order in which they were done.
        fine_tuned: those of the model that was fine-tuned on instead of trained by RL.
        baseline: what training started from, in words.
    """
    unscored = sum(result.failed for result in (*evaluations, *fine_tuned))
    scored = [result for result in evaluations if result.rewards]
    first = min((result.version for result in scored), default=0)
    last = max((result.version for result in scored), default=0)
    curve = sorted((result for result in scored if result.mode == SAMPLED), key=lambda result: result.step)
    before = [result for result in curve[:1] if result.step == 0]
    after = [result for result in curve[-1:] if result.step > 0]
    greedy = [result for result in scored if result.mode == GREEDY and result.version == last > first]
    controls = [
        (_FORCED_NAMES.get(result.mode, f"{baseline}, {result.mode}"), result)
        for result in scored
        if result.mode != SAMPLED and result.version == first
    ]
    controls += [(f"continued fine-tuning, {result.mode}", result) for result in fine_tuned if result.rewards]
    shown = [*curve, *greedy, *(result for _, result in controls)]
    known = all(correct is not None for result in shown for correct in result.correct)

    def measured(name: str, result: EvaluationResult) -> MeasuredAnswers:
        one = MeasuredAnswers.of(name, result)
        return one if known else one.without_accuracy

    def newest(name: str, found: Sequence[EvaluationResult]) -> MeasuredAnswers | None:
        return measured(name, found[-1]) if found else None

    return Results(
        baseline,
        tuple(measured("RL, sampled", result) for result in curve),
        newest("before RL, sampled", before),
        newest("after RL, sampled", after),
        newest("after RL, greedy", greedy),
        tuple(measured(name, result) for name, result in controls),
        unscored,
    )


def _from_plain(found: Mapping[str, Any] | None) -> MeasuredAnswers | None:
    if found is None:
        return None
    estimates = {key: None if found[key] is None else Estimate(**found[key]) for key in ("reward", "accuracy")}
    parts = {name: part for name, plain in found.get("sources", {}).items() if (part := _from_plain(plain)) is not None}
    return MeasuredAnswers(**{**found, **estimates, "sources": parts})
