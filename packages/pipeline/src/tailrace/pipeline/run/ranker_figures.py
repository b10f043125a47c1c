"""Figures of the ranker of a run: how well its predictions found the longest responses, beside the prompts' own lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailrace.pipeline.controller.lengths import Outcome, recall_of
from tailrace.pipeline.controller.view import RunView

_AT_ONCE = 1_000  # texts in one message


def prompt_characters(run: RunView, texts: Callable[[Sequence[int]], Sequence[str]]) -> dict[int, int]:
    """The number of characters of each prompt that a run with a ranker trained on.

    Args:
        texts: texts of prompts of the stream, by their indices.
    """
    prompts = sorted({outcome.prompt for outcome in run.prediction_outcomes})
    found: dict[int, int] = {}
    for first in range(0, len(prompts), _AT_ONCE):
        some = prompts[first : first + _AT_ONCE]
        found |= {prompt: len(text) for prompt, text in zip(some, texts(some), strict=True)}
    return found


def ranker_figures(run: RunView, characters: Mapping[int, int] | None) -> dict[str, Any]:
    """The figures as fields of a summary.

    Both recalls are of the longest 20 % of all trajectories that were trained on. A prediction counts as it stood when its
    group started; without one, a trajectory stands below those that have one.

    Args:
        characters: what `prompt_characters` found; None if there are no texts.
    """
    outcomes = run.prediction_outcomes

    def of(score: Callable[[Outcome], float | None]) -> float | None:
        found = recall_of((score(outcome), outcome) for outcome in outcomes)
        return None if found is None else round(found, 4)

    return {
        "ranker_recall20": of(lambda outcome: outcome.predicted),
        "prompt_length_recall20": None if characters is None else of(lambda outcome: characters[outcome.prompt]),
        "ranker_updates": run.ranker_updates,
        "unpredicted": run.counts.unpredicted,
    }


NO_RANKER = dict.fromkeys(("ranker_recall20", "prompt_length_recall20", "ranker_updates", "unpredicted"))
"""The figures of a run without one."""
