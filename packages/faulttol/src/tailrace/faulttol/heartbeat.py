"""Which members have been silent for longer than they should. Pure: time is an argument.

    expect ─► heard ──after_s──► silent ─┐
               ▲  ▲                │ ▲   │ told again after each further after_s
               │  └───── beat ─────┘ └───┘
               └ beat                      the end of a silence is told too

Whether a silent member counts as down is for a detection policy to say (`tailrace.faulttol.detection`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.faulttol.errors import HeartbeatError


@dataclass(frozen=True, slots=True)
class Silence:
    """A member has been silent for longer than it should, or answers again.

    Args:
        silent_s: seconds since it was last heard; 0 once it answers again.
    """

    member: str
    silent_s: float


@dataclass(slots=True)
class _Watched:
    heard_s: float
    told_s: float | None = None  # when its silence was told last; None if it was not


class HeartbeatMonitor:
    """Tells which members are silent (Laminar sections 3.3 and 4.3: heartbeat-based failover).

    Args:
        after_s: silence after which a member is told, and again after each further silence of that length.

    Raises:
        HeartbeatError: not ``0 < after_s < infinity``.
    """

    def __init__(self, after_s: float) -> None:
        if not 0 < after_s < math.inf:
            raise HeartbeatError(f"found after_s={after_s!r}, expected a number of seconds above 0")
        self.after_s = after_s
        self._watched: dict[str, _Watched] = {}
        self._back: dict[str, None] = {}  # silent when last told, heard since

    @property
    def members(self) -> tuple[str, ...]:
        """The watched members, in the order in which they were expected."""
        return tuple(self._watched)

    def expect(self, member: str, now: float) -> None:
        """Watch a member from now on, as if it had just been heard, even if it is watched already."""
        self._watched[member] = _Watched(now)
        self._back.pop(member, None)

    def beat(self, member: str, now: float) -> bool:
        """Note that a member was heard, which ends its silence.

        Args:
            now: when it was heard; a beat older than the last one changes nothing.

        Returns:
            Whether the member is watched; a beat from any other changes nothing.
        """
        watched = self._watched.get(member)
        if watched is None:
            return False
        if now >= watched.heard_s:
            watched.heard_s = now
            if watched.told_s is not None:
                watched.told_s = None
                self._back[member] = None
        return True

    def forget(self, member: str) -> None:
        """Watch a member no longer, for example because it was stopped on purpose. Unknown members are ignored."""
        self._watched.pop(member, None)
        self._back.pop(member, None)

    def silent_s(self, member: str, now: float) -> float:
        """Seconds since a member was last heard, if that is longer than it should be; 0 otherwise.

        Raises:
            KeyError: it is not watched.
        """
        silent_s = now - self._watched[member].heard_s
        return silent_s if silent_s >= self.after_s else 0.0

    def check(self, now: float) -> list[Silence]:
        """Silences that began, went on for another `after_s`, or ended since the last check."""
        news = [Silence(member, 0.0) for member in self._back if now - self._watched[member].heard_s < self.after_s]
        self._back.clear()
        for member, watched in self._watched.items():
            silent_s = now - watched.heard_s
            since_s = watched.heard_s if watched.told_s is None else watched.told_s
            if silent_s >= self.after_s and now - since_s >= self.after_s:
                watched.told_s = now
                news.append(Silence(member, silent_s))
        return news

    def next_due_s(self) -> float | None:
        """The earliest time at which `check` can return something, in the past if it can now; None if nobody is watched."""
        if self._back:
            return -math.inf
        return min(
            (
                (watched.heard_s if watched.told_s is None else watched.told_s) + self.after_s
                for watched in self._watched.values()
            ),
            default=None,
        )
