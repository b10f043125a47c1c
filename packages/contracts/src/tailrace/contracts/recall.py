"""How long responses were of late, and how well predicted lengths have found the longest of them."""

from __future__ import annotations

from tailrace.contracts.record import record


@record
class MeasuredRecall:
    """Recall of predictions that were made before the lengths were known, on the groups that ended last.

    Args:
        recall: of the longest 20 % of their trajectories, the part that was among the 20 % with the longest predictions.
        chance: the recall up to which they may have been found by chance.
        groups: on how many groups it was measured.
    """

    recall: float
    chance: float
    groups: int

    @property
    def by_chance(self) -> bool:
        """Whether the predictions may as well have been drawn at random."""
        return self.recall <= self.chance


@record
class MeasuredLengths:
    """How long the responses were that ended last, whatever was predicted for them.

    Args:
        p50: median of their generated tokens.
        p90: the ninetieth percentile.
        trajectories: of how many.
    """

    p50: float
    p90: float
    trajectories: int
