"""Whether predictions come ahead of the launches that they are for, folded from a run's log.

ahead     Predicted ──────────────► the prompt's first Route      > 0: the launch had its prediction already
waited    Predict ──► Predicted = the prompt's first Route        the launch was decided upon the answer alone
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import RANKER


class PredictionFigures:
    """A fold over the instants of a log.

    `ahead_s` has, for each prompt launched with a prediction, the seconds for which it had one. `launched` counts launched
    groups, `unpredicted` those of them that had none. `waited_s` are the seconds from question to answer of launches that were
    decided in an instant that brought nothing but the ranker's answers, theirs among them.
    """

    def __init__(self) -> None:
        self.ahead_s: list[float] = []
        self.launched = self.unpredicted = 0
        self.waited_s = 0.0
        self._groups: set[int] = set()
        self._asked: dict[int, float] = {}
        self._answered: dict[int, float] = {}

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        answered = {event.prompt for event in events if isinstance(event, c.Predicted)}
        for prompt in answered:
            self._answered.setdefault(prompt, now)
        alone = bool(answered) and all(map(_is_of_ranker, events))
        for command in commands:
            match command:
                case c.Predict(prompts=prompts):
                    for prompt in prompts:
                        self._asked.setdefault(prompt, now)
                case c.Route(trajectories=refs):
                    for ref in refs:
                        if ref.purpose is c.Purpose.TRAIN and ref.group not in self._groups:
                            self._groups.add(ref.group)
                            self._launches(ref.prompt, now, waited=alone and ref.prompt in answered)

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary: None where there is nothing to tell of, as in a run without a ranker."""
        if not self._asked and not self.ahead_s:
            return dict.fromkeys(("unpredicted_share", "predicted_ahead_s", "waited_for_predictions_s"))
        return {
            "unpredicted_share": round(self.unpredicted / self.launched, 4) if self.launched else None,
            "predicted_ahead_s": round(median(self.ahead_s), 3) if self.ahead_s else None,
            "waited_for_predictions_s": round(self.waited_s, 3),
        }

    def _launches(self, prompt: int, now: float, *, waited: bool) -> None:
        asked_s, answered_s = self._asked.get(prompt, now), self._answered.get(prompt)
        self.launched += 1
        if answered_s is None:
            self.unpredicted += 1
            return
        self.ahead_s.append(now - answered_s)
        if waited:
            self.waited_s += now - asked_s


def _is_of_ranker(event: c.Event) -> bool:
    if isinstance(event, c.Activity):
        return event.role == RANKER
    return isinstance(event, c.Predicted | c.PredictionFailed)
