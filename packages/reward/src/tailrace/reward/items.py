"""What is scored or judged, and what comes of it: a reward, or a failure of infrastructure, which is never a reward of zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.contracts import same_rewards
from tailrace.reward.errors import ItemError


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """A response to score.

    Args:
        trajectory: the trajectory's id.
        response_text: the decoded response, without the prompt; of several turns, with what the environment answered.
        answer: the reference answer of its prompt.
        verifier: name of the verifier.
        metadata: the row's metadata; JSON values only. Of a response with turns, see `tailrace.reward.items`.
        prompt_text: the prompt, which a judge reads. Right programs set the timeout of later ones with the same prompt or,
            without it, of those with the same tests.

    Raises:
        ItemError: one of them is no text, or the metadata is no mapping.
    """

    trajectory: str
    response_text: str
    answer: str
    verifier: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    prompt_text: str = ""

    def __post_init__(self) -> None:
        for name in ("trajectory", "response_text", "answer", "verifier", "prompt_text"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ItemError(f"found {name} = {value!r:.60} of the type {type(value).__name__}, expected text")
        if not isinstance(self.metadata, Mapping):
            raise ItemError(f"found metadata of the type {type(self.metadata).__name__}, expected a mapping of columns")


@dataclass(frozen=True, slots=True)
class ScoringResult:
    """A trajectory's reward.

    Args:
        correct: whether its answer is right, as the verifier says; None if it does not say. See `right`.
        over_budget: the limit that the response used up while it was scored, as in "cpu 2 s"; empty if none. Its reward is
            then 0.
        seconds: wall time of scoring it, without its time in a queue.
    """

    trajectory: str
    reward: float
    correct: bool | None = None
    over_budget: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def right(self) -> bool | None:
        """Whether the answer counts as right: as the verifier says or, where it does not, by a reward of 1 or 0.

        A reward that is one of those but for rounding is one (`same_rewards`), as in a run's evaluations.
        """
        if self.correct is not None:
            return self.correct
        return next((known == 1.0 for known in (0.0, 1.0) if same_rewards((self.reward, known))), None)


@dataclass(frozen=True, slots=True)
class ScoringFailure:
    """The verifier could not judge: it raised, hung, died, or returned something other than a finite number."""

    trajectory: str
    reason: str
    seconds: float = field(default=0.0, compare=False)


Outcome = ScoringResult | ScoringFailure


@dataclass(frozen=True, slots=True)
class Recheck:
    """A response that had used up its timeout, scored again with the largest one. If it is right, the timeout was false."""

    trajectory: str
    correct: bool


TURNS = "turns"


class Turns(dict[str, Any]):
    """What is known of a response's turns: no row can have it, since rows have JSON values."""


def of_turns(count: int, reward: float, done: bool, last: str) -> dict[str, Any]:
    """What is added to the metadata of a response with turns."""
    return {TURNS: Turns(count=count, reward=reward, done=done, last=last)}


def turns_in(metadata: Mapping[str, Any]) -> Turns | None:
    """What the metadata says of the response's turns; None of a response that asked no environment."""
    found = metadata.get(TURNS)
    return found if isinstance(found, Turns) else None


def said(response: str, metadata: Mapping[str, Any]) -> str:
    """Where the model's final answer stands: its last turn. What an environment answered is not the model's answer."""
    turns = turns_in(metadata)
    return response if turns is None else str(turns["last"])


@dataclass(frozen=True, slots=True)
class JudgeItem:
    """A response to judge.

    Args:
        response: the decoded response, without the prompt.
        prompt: the prompt's text.
        answer: the reference answer; may be empty where the template does not show it.
        rubric: what this row's responses are judged by; may be empty where the template does not show it.
    """

    response: str
    prompt: str = ""
    answer: str = ""
    rubric: str = ""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """The judge gave no score, which is never a score of zero.

    Args:
        reason: why, in one line.
        permanent: whether the same item would fail again, as one that is longer than the judge reads; the loss of a process
            or a missed deadline is not permanent.
    """

    reason: str
    permanent: bool


Judgement = float | Unjudged
"""A score from 0 to 1, or why there is none."""
