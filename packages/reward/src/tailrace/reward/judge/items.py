"""What a judge is asked, and what it answers where it gives no score."""

from __future__ import annotations

from dataclasses import dataclass


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
