"""Scores by a judge, as a backend of the reward scheduler. Responses that are scored at the same time share a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.reward.errors import ScoringError
from tailrace.reward.items import ScoreItem, ScoringResult
from tailrace.reward.judge.items import JudgeItem, Unjudged
from tailrace.reward.judge.process import JudgeProcess


class JudgeBackend:
    """Asks one judge. Several scores may be under way at once.

    Args:
        judge: the judge's process; it is ended with this backend.
        timeout_s: deadline of one score. Loading the model does not count.
    """

    def __init__(self, judge: JudgeProcess, timeout_s: float) -> None:
        self._judge, self._timeout_s = judge, timeout_s

    @property
    def pid(self) -> int | None:
        """The judge's process id while it runs."""
        return self._judge.pid

    async def score(self, item: ScoreItem) -> ScoringResult:
        """The judge's score of a response, 0 to 1. The row's metadata may have a ``rubric``.

        Raises:
            ScoringError: the judge gave none, which is never a score of zero.
        """
        asked = JudgeItem(item.response_text, item.prompt_text, item.answer, _rubric(item.metadata))
        (found,) = await self._judge.score([asked], self._timeout_s)
        if isinstance(found, Unjudged):
            raise ScoringError(found.reason)
        return ScoringResult(item.trajectory, found)

    async def start(self) -> None:
        """Load the model now; see `JudgeProcess.start` for what it raises."""
        await self._judge.start()

    async def close(self) -> None:
        """End the judge's process."""
        await self._judge.close()


def _rubric(metadata: Mapping[str, Any]) -> str:
    found = metadata.get("rubric", "")
    if not isinstance(found, str):
        raise ScoringError(f"found the rubric {found!r:.60}, expected text")
    return found
