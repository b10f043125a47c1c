"""The predictor of ``lexical``: boosted trees on features of the text give a score, and the score the quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from tailrace.ranker.baselines.boosting import Growth, Trees, boosted
from tailrace.ranker.by_score import QuantilesByScore
from tailrace.ranker.censoring import mean_tokens
from tailrace.ranker.contents import file_of, from_json, to_json
from tailrace.ranker.deadline import Deadline
from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
from tailrace.ranker.features import COUNT, features_of
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction

_TREES, _QUANTILES = "trees.safetensors", "quantiles.json"
_ROWS_AT_ONCE = 4096


class BoostedPredictor:
    """Predicts by trees.

    Args:
        growth: how the trees grew.
        trees: give the score.
        quantiles: give the rest.
    """

    def __init__(self, growth: Growth, trees: Trees, quantiles: QuantilesByScore) -> None:
        self._growth, self._trees, self._quantiles = growth, trees, quantiles

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        """One prediction for each prompt."""
        parts = (prompts[at : at + _ROWS_AT_ONCE] for at in range(0, len(prompts), _ROWS_AT_ONCE))
        return [self._quantiles(float(score)) for part in parts for score in self._trees(_rows(part))]

    def update(self, examples: Sequence[Example], setting: Setting) -> BoostedPredictor:
        """Learn anew."""
        return fit_boosted(self._growth, examples, setting)

    def files(self) -> dict[str, bytes]:
        """The trees as tensors, the quantiles as JSON."""
        trees = {name: np.ascontiguousarray(getattr(self._trees, name)) for name in ("feature", "threshold", "value")}
        trees["start"] = np.array([self._trees.start])
        return {_TREES: save_tensors(trees), _QUANTILES: to_json({"points": self._quantiles.points})}


def fit_boosted(growth: Growth, examples: Sequence[Example], setting: Setting) -> BoostedPredictor:
    """Learn the mean length of each prompt's samples; quantiles are those by scores of trees that had not seen the prompt."""
    rows = _rows([example.prompt for example in examples])
    means = np.array([mean_tokens(example.samples) for example in examples])

    def grown(side: Any, deadline: Deadline) -> Trees:
        return boosted(rows[side], means[side], growth, setting.seed, deadline)

    trees = grown(slice(None), setting.deadline.part(0.4))
    scores = trees(rows)
    fold = _half_of_prompts(examples, setting.seed)
    if 0 < fold.sum() < len(fold):
        for part, side in ((0.4, fold), (0.8, ~fold)):
            scores[side] = grown(~side, setting.deadline.part(part))(rows[side])
    quantiles = QuantilesByScore.fit(scores.tolist(), [example.samples for example in examples])
    return BoostedPredictor(growth, trees, quantiles)


def restored(growth: Growth, files: Mapping[str, bytes]) -> BoostedPredictor:
    """What `BoostedPredictor.files` wrote.

    Raises:
        DamagedRankerError: something else is there.
    """
    try:
        arrays = load_tensors(file_of(files, _TREES))
        trees = Trees(float(arrays["start"][0]), arrays["feature"], arrays["threshold"], arrays["value"])
        count, nodes = trees.feature.shape
        fits = trees.threshold.shape == trees.value.shape == (count, nodes) and nodes & (nodes + 1) == 0
        # What lies on the last level has no children.
        inside = ((trees.feature >= -1) & (trees.feature < COUNT)).all() and (
            trees.feature[:, nodes // 2 :] == -1
        ).all()
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedRankerError(f"{_TREES}: found no trees ({error}), expected what was saved") from error
    if not (fits and inside):
        raise DamagedRankerError(f"{_TREES}: found trees that do not fit together, expected what was saved")
    points = from_json(files, _QUANTILES, "points")["points"]
    return BoostedPredictor(growth, trees, QuantilesByScore.from_json(points))


def _rows(prompts: Sequence[str]) -> Any:
    return np.array([features_of(prompt) for prompt in prompts], dtype=np.float32).reshape(len(prompts), COUNT)


def _half_of_prompts(examples: Sequence[Example], seed: int) -> Any:
    prompts = sorted({example.prompt for example in examples})
    chosen = {prompts[at] for at in np.random.default_rng(seed).permutation(len(prompts))[: len(prompts) // 2]}
    return np.array([example.prompt in chosen for example in examples])
