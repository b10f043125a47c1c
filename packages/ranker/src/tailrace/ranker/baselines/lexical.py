"""The baseline ``lexical``: features of the text, and gradient boosting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.contracts import extra
from tailrace.ranker.errors import RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Setting

if TYPE_CHECKING:
    from tailrace.ranker.baselines.boosting import BoostedPredictor


@dataclass(frozen=True, slots=True)
class Lexical:
    """Ranks by the mean length of a prompt's samples, which boosted trees learn from features of the text (`features_of`).

    Args:
        trees: most trees.
        depth: of a tree, at most 12.
        rate: learning rate.
        least_leaf: prompts in a leaf.

    Raises:
        RankerOptionError: a value is outside its range.
    """

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    trees: int = 200
    depth: int = 4
    rate: float = 0.06
    least_leaf: int = 3

    def __post_init__(self) -> None:
        for name in ("trees", "depth", "rate", "least_leaf"):
            if not getattr(self, name) > 0:
                raise RankerOptionError(f"found {name} = {getattr(self, name)!r}, expected more than 0")
        if self.depth > 12:
            raise RankerOptionError(
                f"found depth = {self.depth}, expected at most 12: a tree has 2 ** (depth + 1) - 1 nodes"
            )

    def fit(self, examples: Sequence[Example], setting: Setting) -> BoostedPredictor:
        """Learn."""
        with extra("tailrace-ranker", "lexical"):
            from tailrace.ranker.baselines.boosting import TreeGrowth, fit_boosted
        return fit_boosted(TreeGrowth(self.trees, self.depth, self.rate, self.least_leaf), examples, setting)

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> BoostedPredictor:
        """Read what `fit` learned."""
        del setting
        with extra("tailrace-ranker", "lexical"):
            from tailrace.ranker.baselines.boosting import TreeGrowth, restored
        return restored(TreeGrowth(self.trees, self.depth, self.rate, self.least_leaf), files)
