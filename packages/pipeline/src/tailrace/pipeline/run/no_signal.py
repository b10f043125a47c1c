"""Says when nearly every group is filtered because its rewards are all equal: training then waits, and nothing is broken.

That is the filter of DAPO's dynamic sampling (`filter_equal_rewards`). A model that solves no problem, or every one, gives it
nothing to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

_WINDOW, _LEAST = 64, 16  # groups that are looked at, and that say anything
_MANY, _FEW = 0.9, 0.5  # shares that are filtered: above the first it is said, below the second it is over
_REWARDS = 512


class NoSignal:
    """Follows the groups of a run as they are complete.

    `warning` says what happens and what to do while nearly all are filtered; it is empty otherwise.
    """

    def __init__(self) -> None:
        self.warning = ""
        self._groups: deque[bool] = deque(maxlen=_WINDOW)
        self._rewards: deque[float] = deque(maxlen=_REWARDS)
        self._completed = self._filtered = self._said = 0

    def lines(self, completed: int, filtered: int, rewards: Iterable[float]) -> list[str]:
        """What a person must hear of an instant: once as it begins, again when twice as many are filtered, and when it is over.

        Args:
            completed: groups that were complete so far, filtered ones included.
            filtered: those of them whose rewards were all equal.
            rewards: of the trajectories that were scored in this instant.
        """
        self._rewards.extend(rewards)
        new, lost = completed - self._completed, filtered - self._filtered
        self._completed, self._filtered = completed, filtered
        if new <= 0:  # also where a driver went on from a log
            return []
        self._groups.extend([True] * lost + [False] * (new - lost))
        gone, of = sum(self._groups), len(self._groups)
        if of >= _LEAST and gone > _MANY * of:
            self.warning = said(gone, of, self._rewards, last=True)
            if filtered < 2 * self._said:
                return []
            self._said = filtered
            return [self.warning]
        if self.warning and gone < _FEW * of:
            self.warning, self._said = "", 0
            return [f"groups have a signal again: {of - gone} of the last {of} were kept"]
        return []


def starved(completed: int, filtered: int) -> list[str]:
    """The same of a whole run, which has ended, by its groups; nothing if enough were kept."""
    return [said(filtered, completed, (), last=False)] if completed >= _LEAST and filtered > _MANY * completed else []


def said(filtered: int, of: int, rewards: Iterable[float], *, last: bool) -> str:
    """The warning in one line.

    Args:
        filtered, of: groups.
        rewards: of trajectories, as far as they are known: they tell tasks that are too hard from those that are too easy.
        last: these are the last groups of a run that goes on.
    """
    known = list(rewards)
    mean = f", {sum(known) / len(known):.2g} on average" if known else ""
    waits = "training waits for groups that differ" if last else "training had to wait for groups that differ"
    return (
        f"{filtered:,} of {'the last ' if last else ''}{of:,} groups were filtered, since all rewards of each are equal{mean}: "
        f"{waits}. A task that the model solves sometimes, a longer warm start or more samples to a prompt give more of them; "
        "pipeline.batching.filter_equal_rewards = false trains on all"
    )
