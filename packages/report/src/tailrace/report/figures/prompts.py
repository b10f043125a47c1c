"""What became of every prompt.

admitted prompts = trained on + filtered (by reason) + failed            and nothing is lost
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.controller.view import RunView
from tailrace.report.reason_words import end, many


@dataclass(frozen=True, slots=True)
class PromptFates:
    """Prompts, that is groups, by what became of them.

    Args:
        filtered: by the reason's name.
        failed: by the reason's name: the verifier broke, an engine refused the prompt, or an environment did not answer.
        open: neither trained on nor dropped yet; 0 once the run has finished.
    """

    admitted: int
    trained: int
    filtered: Mapping[str, int]
    failed: Mapping[str, int]
    open: int = 0

    @classmethod
    def of(cls, run: RunView) -> PromptFates:
        """What became of the prompts of a run. At its end nothing is open: what has no end then is lost."""
        counts = run.counts
        filtered, failed = (dict(sorted(each.items())) for each in (counts.filtered_because, counts.failed_because))
        return cls(counts.prompts, counts.trained, filtered, failed, 0 if run.finished else run.open_groups)

    @property
    def lost(self) -> int:
        """Admitted and nowhere to be found; anything but 0 is a fault of Tailrace."""
        return self.admitted - self.trained - sum(self.filtered.values()) - sum(self.failed.values()) - self.open

    def __str__(self) -> str:
        """The sum, for a person."""
        parts = [
            f"{self.trained:,} trained on",
            f"{sum(self.filtered.values()):,} filtered{_reasons(self.filtered)}",
            f"{sum(self.failed.values()):,} failed{_reasons(self.failed)}",
        ]
        parts += [f"{self.open:,} still open"] if self.open else []
        return f"{self.admitted:,} admitted = {' + '.join(parts)}; {self.lost:,} lost"


def failures(counted: Mapping[str, Any]) -> list[str]:
    """A line for each reason for which groups failed, with what was said first, from ``prompts`` of a summary."""
    said = counted.get("failed_words", {})
    return [
        f"{many(count, 'group')} failed ({end(why)}), the first because: {said.get(why, 'unknown')}"
        for why, count in counted.get("failed_because", {}).items()
    ]


def _reasons(counted: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{count:,} {end(reason)}" for reason, count in sorted(counted.items()))
    return f" ({reasons})" if reasons else ""
