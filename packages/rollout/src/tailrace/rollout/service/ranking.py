"""The order in which the prompts of a request start: longest first, if a ranker says which those are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from tailrace.rollout.service.prompts import Prompt, PromptReader

_LOG = logging.getLogger(__name__)


class Ranker(Protocol):
    """Says which prompts will have the longest responses (`tailrace.ranker.LengthRanker` is one)."""

    def rank(self, prompts: Sequence[str]) -> Sequence[int]:
        """Positions of the prompts, longest first."""
        ...


class Ranking:
    """Asks a ranker in time, and does without it where it fails.

    Args:
        ranker: None leaves the order as given.
        reader: turns token ids into the text that a ranker reads.
        timeout_s: how long a request waits for it.
    """

    def __init__(self, ranker: Ranker | None, reader: PromptReader, timeout_s: float) -> None:
        self._ranker, self._reader, self._timeout_s = ranker, reader, timeout_s
        self.unranked = 0  # prompts that started in the order given, since the ranker failed

    async def order(self, prompts: Sequence[Prompt]) -> Sequence[int]:
        """The order in which prompts start. A ranker that is late or wrong costs the order, not the request."""
        as_given = range(len(prompts))
        if self._ranker is None or len(prompts) < 2:
            return as_given
        try:
            texts = self._reader.text(prompts)
            order = await asyncio.wait_for(asyncio.to_thread(self._ranker.rank, texts), self._timeout_s)
            if _is_order(order, len(prompts)):
                return [int(position) for position in order]
            problem = "it does not rank each prompt once"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self.unranked += len(prompts)
        _LOG.warning("%d prompts start in the order given, since the ranker failed: %s", len(prompts), problem)
        return as_given


def _is_order(positions: object, count: int) -> bool:
    """Whether these are all positions from 0 to `count`, once each."""
    try:
        return sorted(int(position) for position in positions) == list(range(count))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
