"""Faults of a simulated fleet other than dying members: broken pulls, checkpoints and verifiers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Injuries:
    """The present faults.

    `torn_pulls` counts the next pulls of a replica that arrive damaged, `lost_checkpoints` the next ones that cannot be
    written. `damaged` are checkpoints that cannot be read. Until `scoring_broken_until_s` no verifier works. Only the newest
    `kept_versions` can be pulled; 0 is no limit.
    """

    torn_pulls: Counter[str] = field(default_factory=Counter)
    lost_checkpoints: int = 0
    damaged: set[int] = field(default_factory=set)
    scoring_broken_until_s: float = 0.0
    kept_versions: int = 0

    def torn(self, replica: str) -> bool:
        """Whether the pull of a replica that begins now will arrive damaged."""
        if self.torn_pulls[replica] > 0:
            self.torn_pulls[replica] -= 1
            return True
        return False

    def loses_checkpoint(self) -> bool:
        """Whether the checkpoint that is being written is lost."""
        if self.lost_checkpoints:
            self.lost_checkpoints -= 1
            return True
        return False
