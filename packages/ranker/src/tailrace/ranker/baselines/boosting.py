"""The predictor of ``lexical``: gradient boosting of regression trees on histograms (Friedman 2001; histograms as in LightGBM).

A page of numpy instead of a library, which finds no more: of the longest fifth of the worked solutions to held-out prompts of
`tools/bench/ranker.py` 0.672, LightGBM 0.670, scikit-learn 0.671. These bring scipy (122 and 146 MB in all), and
scikit-learn's trees are saved only by pickle; where it is installed, every process that imports transformers imports it, too
(1.0 s of CPU).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from tailrace.ranker.censoring import QuantilesByScore, mean_tokens
from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
from tailrace.ranker.features import COUNT, features_of
from tailrace.ranker.methods import Deadline, Setting
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.saved import file_of, from_json, to_json

_BINS = 64
_ROWS, _FEATURES = 0.7, 0.3  # parts that a tree sees: trees that differ err differently
_LEAST_SAMPLED = 20  # fewer rows are all used
_SHRINK = 1.0  # rows of value 0 that every leaf is averaged with


@dataclass(frozen=True)
class Trees:
    """An ensemble of complete binary trees of one depth. The children of node i are 2 i + 1 and 2 i + 2.

    Args:
        start: the value before the first tree.
        feature: [trees, nodes] int64, -1 for a leaf.
        threshold: [trees, nodes] float32; a row whose feature is above it goes to the second child.
        value: [trees, nodes] float64, of leaves.
    """

    start: float
    feature: Any
    threshold: Any
    value: Any

    def __call__(self, rows: Any) -> Any:
        """Values [n] float64 of rows [n, features] float32."""
        found = np.full(len(rows), self.start)
        for feature, threshold, value in zip(self.feature, self.threshold, self.value, strict=True):
            at: Any = np.zeros(len(rows), dtype=np.int64)
            for _ in range(self.depth):
                here = feature[at]
                above = rows[np.arange(len(rows)), here] > threshold[at]
                at = np.where(here < 0, at, 2 * at + 1 + above)
            found += value[at]
        return found

    @property
    def depth(self) -> int:
        """Depth of the trees."""
        return int(self.feature.shape[1]).bit_length() - 1


@dataclass(frozen=True, slots=True)
class TreeGrowth:
    """How trees grow.

    Args:
        trees: most of them.
        depth: of each.
        rate: the part of each that is added.
        least_leaf: rows in a leaf.
    """

    trees: int
    depth: int
    rate: float
    least_leaf: int


def boosted(rows: Any, targets: Any, growth: TreeGrowth, seed: int, deadline: Deadline) -> Trees:
    """Trees that predict targets from rows; fewer if the deadline comes first, at least one.

    Args:
        rows: [n, features] float32.
        targets: [n] float64.
        growth: how.
        seed: of the rows and the features that a tree sees.
        deadline: when to end.
    """
    drawn = np.random.default_rng(seed)
    edges = [_edges(rows[:, column]) for column in range(rows.shape[1])]
    bins = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, rows.T, strict=True)], axis=1)
    start = float(np.mean(targets))
    found = np.full(len(rows), start)
    made: list[tuple[Any, Any, Any]] = []
    slowest = 0.0
    while len(made) < growth.trees and (not made or deadline.allows(slowest)):
        began = deadline.now()
        chosen = np.arange(len(rows))
        if len(rows) >= _LEAST_SAMPLED:
            chosen = np.sort(drawn.permutation(len(rows))[: int(_ROWS * len(rows))])
        columns = np.sort(drawn.permutation(rows.shape[1])[: max(1, round(_FEATURES * rows.shape[1]))])
        feature, cut, value = _grown(bins[np.ix_(chosen, columns)], (targets - found)[chosen], growth)
        feature = np.where(feature < 0, -1, columns[feature])
        threshold = np.array([edges[f][b] if f >= 0 else 0.0 for f, b in zip(feature, cut, strict=True)], np.float32)
        made.append((feature, threshold, growth.rate * value))
        found += Trees(0.0, *(part[None] for part in made[-1]))(rows)
        slowest = max(slowest, deadline.now() - began)
    feature, threshold, value = (np.stack(parts) for parts in zip(*made, strict=True))
    return Trees(start, feature, threshold, value)


def _edges(column: Any) -> Any:
    """Values at which a feature can be cut: at most `_BINS` - 1, between values that occur."""
    values = np.unique(column)
    if len(values) > _BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, _BINS), method="nearest"))
    return values[:-1]


def _grown(bins: Any, residuals: Any, growth: TreeGrowth) -> tuple[Any, Any, Any]:
    """One tree, level by level: of each node the column (-1 for a leaf), the bin up to which rows go left, and the value."""
    nodes = 2 ** (growth.depth + 1) - 1
    feature, cut, value = np.full(nodes, -1), np.zeros(nodes, dtype=np.int64), np.zeros(nodes)
    at: Any = np.zeros(len(bins), dtype=np.int64)
    for level in range(growth.depth + 1):
        first, count = 2**level - 1, 2**level
        inside = at >= first  # rows whose node has been split
        sums = np.bincount(at[inside] - first, residuals[inside], count)
        sizes = np.bincount(at[inside] - first, minlength=count)
        value[first : first + count] = sums / (sizes + _SHRINK)
        if level == growth.depth or not inside.any():
            break
        gains, columns, places = _best_cuts(
            bins[inside], at[inside] - first, residuals[inside], count, growth.least_leaf
        )
        for node in np.flatnonzero(gains > 1e-12):
            feature[first + node], cut[first + node] = columns[node], places[node]
        split = inside & (feature[at] >= 0)
        above = bins[split, feature[at[split]]] > cut[at[split]]
        at[split] = 2 * at[split] + 1 + above
    return feature, cut, value


def _best_cuts(bins: Any, node: Any, residuals: Any, count: int, least: int) -> tuple[Any, Any, Any]:
    """For each node the largest fall of the squared error by a cut, with its column and its bin."""
    columns = bins.shape[1]
    cells = (node[:, None] * columns + np.arange(columns)) * _BINS + bins
    shape = (count, columns, _BINS)
    size = count * columns * _BINS
    sums = np.bincount(cells.ravel(), np.repeat(residuals, columns), size).reshape(shape).cumsum(2)
    sizes = np.bincount(cells.ravel(), minlength=size).reshape(shape).cumsum(2)
    whole, all_of = sums[:, :, -1:], sizes[:, :, -1:]
    right, right_of = whole - sums, all_of - sizes
    allowed = (sizes >= least) & (right_of >= least)
    gains = sums**2 / np.maximum(sizes, 1) + right**2 / np.maximum(right_of, 1) - whole**2 / np.maximum(all_of, 1)
    flat = np.where(allowed, gains, 0.0).reshape(count, -1)
    best = flat.argmax(1)
    return flat[np.arange(count), best], best // _BINS, best % _BINS


_TREES, _QUANTILES = "trees.safetensors", "quantiles.json"
_ROWS_AT_ONCE = 4096


class BoostedPredictor:
    """Predicts by trees.

    Args:
        growth: how the trees grew.
        trees: give the score.
        quantiles: give the rest.
    """

    def __init__(self, growth: TreeGrowth, trees: Trees, quantiles: QuantilesByScore) -> None:
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


def fit_boosted(growth: TreeGrowth, examples: Sequence[Example], setting: Setting) -> BoostedPredictor:
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


def restored(growth: TreeGrowth, files: Mapping[str, bytes]) -> BoostedPredictor:
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
