"""Waits for the outcomes of many things that one member was given. The deadline counts from its last outcome."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from tailrace.pipeline.executor.running import Running
from tailrace.pipeline.executor.waits import Waits


class Outcomes:
    """What a member has not said the outcome of yet: trajectories of a scorer, prompts of a ranker.

    Args:
        waits: the executor's waits.
        what: what is waited for, in words.
        limit_s: seconds from one outcome to the next.
        down: called when there is none in time.
    """

    def __init__(self, waits: Waits, what: str, limit_s: float, down: Callable[[Running, BaseException], None]) -> None:
        self._waits, self._what, self._limit_s, self._down = waits, what, limit_s, down
        self._open: dict[Hashable, None] = {}
        self._wait: int | None = None

    def expect(self, member: Running, things: Iterable[Hashable], now: float) -> None:
        """Wait for the outcomes of these too."""
        self._open.update(dict.fromkeys(things))
        if self._wait is None and self._open:
            self._wait = self._waits.add(
                self._what,
                now,
                self._limit_s,
                None,
                lambda _: None,
                lambda error: self._down(member, error),
                member,
            )

    def came(self, things: Iterable[Hashable], now: float) -> None:
        """Note outcomes: the deadline begins anew."""
        self.dropped(things)
        if self._wait is not None:
            self._waits.renew(self._wait, now, self._limit_s)

    def came_here(self, things: Iterable[Hashable], now: float) -> None:
        """Note outcomes of which some may be another member's."""
        mine = [thing for thing in things if thing in self._open]
        if mine:
            self.came(mine, now)

    def dropped(self, things: Iterable[Hashable]) -> None:
        """Stop waiting for some."""
        for thing in things:
            self._open.pop(thing, None)
        if not self._open and self._wait is not None:
            self._waits.settle(self._wait)
            self._wait = None

    def clear(self) -> None:
        """Forget all, since the member is gone; its waits are forgotten with it."""
        self._open.clear()
        self._wait = None
