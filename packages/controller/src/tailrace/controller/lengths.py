"""Lengths of prompts and responses: what is measured, what is predicted and asked for, and how good predictions were.

The ledger owns all of it; `length_requests.py` asks for it. A prediction counts as it stood when its group started: whatever a
ranker says later may know the responses that it predicts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from tailrace.contracts import MeasuredLengths, MeasuredRecall, Predicted
from tailrace.controller.trajectories import GroupState
from tailrace.ranker import Prediction, recall, remaining_tokens

SHARE = 0.2
"""Share of trajectories that count as the longest: the tail of StreamRL, section 5.3."""
_WINDOW, _EVERY = 128, 16  # groups that count, and after how many more they are measured again
_LEAST = 32  # groups that say anything
_LENGTHS = 4096  # trajectories whose lengths count
_ERRORS = 2.0  # standard errors that are still chance


@dataclass(frozen=True, slots=True)
class Outcome:
    """A group that ended.

    Args:
        prompt: index in the prompt stream.
        predicted: tokens that were predicted for each of its trajectories when it started; None if nothing was.
        lengths: generated tokens of each.
        ranker: how often the ranker had learned anew before it predicted that, or before the start if nothing was predicted.
            The order of scores of two of them says nothing.
    """

    prompt: int
    predicted: float | None
    lengths: tuple[int, ...]
    ranker: int = 0

    @staticmethod
    def of(group: GroupState) -> Outcome:
        """The outcome of a group all of whose trajectories have finished."""
        return Outcome(group.prompt, group.predicted, tuple([state.generated for state in group.states]), group.ranker)


def recall_of(scored: Iterable[tuple[float | None, Outcome]]) -> float | None:
    """Share of the longest trajectories (`SHARE`) that are among as many with the highest scores; see `recall`.

    Args:
        scored: groups, each with the score of its trajectories; None stands below every score, since what has no prediction
            is none of the longest.

    Returns:
        None if there are no trajectories.
    """
    scores: list[float] = []
    lengths: list[int] = []
    for score, outcome in scored:
        scores += [-math.inf if score is None else score] * len(outcome.lengths)
        lengths += outcome.lengths
    return recall(scores, lengths, SHARE) if lengths else None


def measured_recall(outcomes: Sequence[Outcome]) -> MeasuredRecall | None:
    """How well predictions found the longest, and what chance finds; None if there are too few groups to say.

    Trajectories of a group are alike, so groups are what is counted: of g groups, in an order that says nothing, the longest
    `SHARE` p are found with the mean p and a standard deviation of (1 - p)/sqrt(g - 1), that of the hypergeometric law. Two of
    them above the mean are still chance.
    """
    if len(outcomes) < _LEAST:
        return None
    found = recall_of((outcome.predicted, outcome) for outcome in outcomes)
    assert found is not None
    return MeasuredRecall(found, SHARE + _ERRORS * (1 - SHARE) / math.sqrt(len(outcomes) - 1), len(outcomes))


def measured_lengths(lengths: Iterable[int]) -> MeasuredLengths | None:
    """The median and the ninetieth percentile: of n lengths the least that so many are not above; None if there are none."""
    ordered = sorted(lengths)
    if not ordered:
        return None
    p50, p90 = (max(1, ordered[-(-len(ordered) * share // 100) - 1]) for share in (50, 90))
    return MeasuredLengths(float(p50), float(p90), len(ordered))


@dataclass(slots=True)
class PredictionRecord:
    """Predictions and lengths of a run.

    Args:
        recent: the last groups that ended with a prediction, oldest first.
        ended: how many did.
        recall: measured on those of `recent` that the newest ranker predicted, every 16 groups; None until there are 32.
        trained: all groups that were trained on, by the version that they made.
        lengths: generated tokens of the last trajectories of groups that ended, trained on or not.
        measured: their distribution, measured at each step. What ends first is short, so there is none before a batch is whole.
    """

    recent: list[Outcome] = field(default_factory=list)
    ended: int = 0
    recall: MeasuredRecall | None = None
    trained: dict[int, list[Outcome]] = field(default_factory=dict)
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_LENGTHS))
    measured: MeasuredLengths | None = None

    def completed(self, group: GroupState) -> None:
        """All trajectories of a group have ended."""
        outcome = Outcome.of(group)
        self.lengths.extend(outcome.lengths)
        if group.predicted is None:
            return
        self.recent = [*self.recent[1 - _WINDOW :], outcome]
        self.ended += 1
        if self.ended % _EVERY == 0:
            newest = max(each.ranker for each in self.recent)
            self.recall = measured_recall([each for each in self.recent if each.ranker == newest])

    def stepped(self, version: int, groups: Iterable[GroupState]) -> None:
        """Take in that these groups were trained on and made a version."""
        self.measured = measured_lengths(self.lengths)
        self.trained[version] = [Outcome.of(group) for group in groups]

    def fell_back(self, version: int) -> None:
        """The trainer goes on from a version: later ones are undone."""
        self.trained = {made: outcomes for made, outcomes in self.trained.items() if made <= version}

    def outcomes(self) -> list[Outcome]:
        """All groups that were trained on and stay so, in order of versions."""
        return [outcome for _, outcomes in sorted(self.trained.items()) for outcome in outcomes]


@dataclass(slots=True)
class Asked:
    """What the member that is up was asked for.

    Args:
        asked: prompts.
        asked_at: groups admitted when it was last asked; None if it was not.
    """

    asked: dict[int, None] = field(default_factory=dict)
    asked_at: int | None = None

    def ask(self, prompts: Iterable[int]) -> None:
        """Note that prompts are asked for."""
        self.asked.update(dict.fromkeys(prompts))

    def nobody_answers(self) -> None:
        """Note that the member is gone with all that it was asked. The next one is asked for what is missing."""
        self.asked.clear()
        self.asked_at = None


@dataclass(slots=True)
class PredictedLengths(Asked):
    """Predictions for prompts that are open or may be launched soon. A prompt that is done is forgotten, and stays so.

    `asked` has prompts of the ranker, whether it has answered or not.

    Args:
        tokens: response tokens by prompt with which its trajectories are ordered and planned: their mean, or their median
            where no mean is predicted.
        quantiles: what is predicted by prompt, where both quantiles are.
        old: prompts that have not started, and whose prediction is of a ranker that has learned anew since.
        ranker: how often it has learned anew; `rankers` has that number by prompt as it was when the prompt was predicted.
        record: what was predicted, beside how long it became.
        most: most tokens of a response, at which it is cut; None: not known.
    """

    tokens: dict[int, float] = field(default_factory=dict)
    quantiles: dict[int, Prediction] = field(default_factory=dict)
    old: dict[int, None] = field(default_factory=dict)
    ranker: int = 0
    rankers: dict[int, int] = field(default_factory=dict)
    record: PredictionRecord = field(default_factory=PredictionRecord)
    most: int | None = None

    def of(self, prompt: int, generated: int) -> tuple[float | None, float | None]:
        """`predicted` and `left` of the view of a trajectory that has so many response tokens and has not ended.

        What is left is the mean of the lengths above `generated`, each at most `most`, less that. It is not the median less
        that: who has generated the median is not about to end, but is one of the longer half.
        """
        tokens, quantiles = self.tokens.get(prompt), self.quantiles.get(prompt)
        if tokens is None or quantiles is None:
            return tokens, None
        cap = None if self.most is None else max(self.most, generated + 1)  # it has not ended
        return tokens, remaining_tokens(quantiles, generated, cap=cap)

    def predict(self, event: Predicted) -> None:
        """Set what is predicted for a prompt, in place of what was."""
        self.tokens[event.prompt] = event.tokens if event.mean is None else event.mean
        self.rankers[event.prompt] = self.ranker
        self.old.pop(event.prompt, None)
        self.quantiles.pop(event.prompt, None)
        if event.p90 is not None:
            self.quantiles[event.prompt] = Prediction(event.tokens, event.p90, self.tokens[event.prompt])

    def missing(self, prompt: int) -> bool:
        """Whether nothing is predicted for a prompt, or nothing new, and nobody was asked who could still answer."""
        return prompt not in self.asked and (prompt not in self.tokens or prompt in self.old)

    def learned_anew(self, started: Container[int]) -> None:
        """Note that the ranker has learned anew: what was predicted for prompts that have not started is old."""
        self.ranker += 1
        self.old = {prompt: None for prompt in self.tokens if prompt not in started}

    def ask_again(self) -> None:
        """Ask anew for what has no prediction, or an old one, since the ranker has learned."""
        self.asked = {prompt: None for prompt in self.asked if prompt in self.tokens and prompt not in self.old}
        self.asked_at = None

    def done(self, prompt: int) -> None:
        """Forget a prompt that is not launched again. An answer that is still under way finds nobody who asked."""
        self.tokens.pop(prompt, None)
        self.quantiles.pop(prompt, None)
        self.rankers.pop(prompt, None)
        self.asked.pop(prompt, None)
        self.old.pop(prompt, None)


@dataclass(slots=True)
class PromptLengths(Asked):
    """Tokens of the prompts that are open or may be launched soon. The ledger owns them.

    `asked` has prompts that the data role has not measured yet.

    Args:
        tokens: by prompt.
        measured, total: how many prompts were measured in the run, and their tokens.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    measured: int = 0
    total: int = 0

    @property
    def mean(self) -> int:
        """The mean of those that were measured; 0 while none is."""
        return round(self.total / self.measured) if self.measured else 0

    def of(self, prompt: int) -> int:
        """Tokens of a prompt of the stream: its own, or else the mean."""
        tokens = self.tokens.get(prompt)
        return self.mean if tokens is None else tokens

    def missing(self, prompt: int) -> bool:
        """Whether a prompt was not measured, and nobody was asked who could still answer."""
        return prompt not in self.tokens and prompt not in self.asked

    def done(self, prompt: int) -> None:
        """Forget a prompt that is not launched again."""
        self.tokens.pop(prompt, None)
        self.asked.pop(prompt, None)
