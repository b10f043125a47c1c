"""Change of lengths while the model learns: a factor on every length, by weight version."""

from __future__ import annotations

import math
from dataclasses import dataclass

# exp(300) tokens are beyond every cap; a larger exponent would overflow.
_LARGEST_EXPONENT = 300.0


@dataclass(frozen=True, slots=True)
class Drift:
    """A factor for each version. It is applied before the cap, so responses that grow beyond the cap are cut.

    Args:
        per_version: growth with each version; version v has the factor ``per_version ** v``.
        points: (version, factor) with versions increasing; linear between them, constant outside. They replace growth.
    """

    per_version: float = 1.0
    points: tuple[tuple[int, float], ...] = ()

    def factor(self, version: int) -> float:
        """The factor on lengths of this version's responses."""
        if not self.points:
            if self.per_version == 1.0:
                return 1.0
            return math.exp(min(_LARGEST_EXPONENT, version * math.log(self.per_version)))
        before = None
        for point in self.points:
            if point[0] >= version:
                if before is None:
                    return point[1]
                share = (version - before[0]) / (point[0] - before[0])
                return before[1] + share * (point[1] - before[1])
            before = point
        return self.points[-1][1]

    @property
    def largest(self) -> float:
        """The largest factor; for unlimited growth, which has none, that of the first version."""
        return max((factor for _, factor in self.points), default=1.0)
