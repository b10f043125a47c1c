"""What became of every prompt.

admitted prompts = trained on + filtered (by reason) + failed            and nothing is lost
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.contracts import Why
from tailrace.report.fold.history import History
from tailrace.report.words import end


@dataclass(frozen=True, slots=True)
class PromptFates:
    """Prompts, that is groups, by what became of them.

    Args:
        filtered: by the reason's name.
        open: neither trained on nor dropped yet; 0 once the run has finished.
    """

    admitted: int
    trained: int
    filtered: Mapping[str, int]
    failed: int
    open: int = 0

    @classmethod
    def of(cls, history: History) -> PromptFates:
        """What a log shows. At the end of a run nothing is open: what has no end then is lost."""
        filtered = {str(why): count for why, count in sorted(history.ended.items()) if why != Why.NOT_SCORED}
        trained, failed = history.trained, history.ended[Why.NOT_SCORED]
        open_ = 0 if history.finished else history.started - history.dropped - trained
        return cls(history.started, trained, filtered, failed, open_)

    @property
    def lost(self) -> int:
        """Admitted and nowhere to be found; anything but 0 is a fault of Tailrace."""
        return self.admitted - self.trained - sum(self.filtered.values()) - self.failed - self.open

    def __str__(self) -> str:
        """The sum, for a person."""
        reasons = ", ".join(f"{count:,} {end(reason)}" for reason, count in sorted(self.filtered.items()))
        parts = [f"{self.trained:,} trained on", f"{sum(self.filtered.values()):,} filtered"]
        parts[1] += f" ({reasons})" if reasons else ""
        parts.append(f"{self.failed:,} failed")
        parts += [f"{self.open:,} still open"] if self.open else []
        return f"{self.admitted:,} admitted = {' + '.join(parts)}; {self.lost:,} lost"
