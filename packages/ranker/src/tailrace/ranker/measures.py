"""How good predictions are, over trajectories: each sample of a prompt counts, with the prompt's one score. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tailrace.ranker.example import Example
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.recall import recall, tau_b
from tailrace.ranker.splits import halves

SHARES = {"recall20": 0.2, "recall10": 0.1, "recall5": 0.05}
"""The tails of StreamRL, Table 4."""
_SPLITS = 4


def measure(predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
    """recall20, recall10, recall5, tau_b and coverage90 of predictions for the prompts of these examples.

    A truncated sample counts with the tokens that it has: those were generated, and no more.

    Args:
        predictions: one for each example.
        examples: at least one.
    """
    scores: list[float] = []
    lengths: list[int] = []
    covered = 0
    for prediction, example in zip(predictions, examples, strict=True):
        scores += [prediction.score] * len(example.lengths)
        lengths += example.lengths
        covered += sum(length <= prediction.p90 for length in example.lengths)
    found = {name: recall(scores, lengths, share) for name, share in SHARES.items()}
    return {**found, "tau_b": tau_b(scores, lengths), "coverage90": covered / len(lengths)}


def ceiling20(examples: Sequence[Example], seed: int = 0) -> float | None:
    """What recall of the longest 20 % a prompt's own samples give: ranked by the mean of one half, scored on the other.

    Mean over random halves, both ways. What differs between samples of one prompt is luck, which no prediction from the prompt
    knows; so this, and not 1, is what recall compares with. Half of the samples say less than all that there is to know, so a
    good prediction can exceed it a little.

    Returns:
        None if no prompt has two samples.
    """
    found = []
    for split in range(_SPLITS):
        for known, asked in halves(examples, seed + split):
            if not asked:
                return None
            sums: dict[str, list[int]] = {}
            for example in known:
                sums.setdefault(example.prompt, []).extend(example.lengths)
            means = {prompt: fmean(lengths) for prompt, lengths in sums.items()}
            found.append(
                recall([means[example.prompt] for example in asked], [example.lengths[0] for example in asked], 0.2)
            )
    return fmean(found)


def mean_measures(found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The mean of each figure."""
    return {name: fmean(one[name] for one in found) for name in found[0]}
