"""How well predicted lengths have found the longest responses of late."""

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
