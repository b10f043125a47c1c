"""Who has been silent for too long. Pure: time is an argument.

Life of a member:

    expect ─► heard ──suspect_after_s──► suspected ──down_after_s──► dead, and no longer watched
                ▲  ▲                         │
                │  └────────── beat ─────────┘
                └ beat

A member that came back from the dead is watched again only after a new `expect`: its late beats do not revive it, since
its work has been given to others by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.faulttol.errors import HeartbeatError


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A member has been silent for longer than it should. It may only be slow.

    Args:
        silent_s: seconds since it was last heard.
    """

    member: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class Death:
    """A member has been silent for so long that it is taken for gone.

    Args:
        silent_s: seconds since it was last heard.
    """

    member: str
    silent_s: float


@dataclass(slots=True)
class _Watched:
    heard_s: float
    suspected: bool = False


class HeartbeatMonitor:
    """Tells who is silent (Laminar sections 3.3 and 4.3: heartbeat-based failover).

    Args:
        suspect_after_s: silence after which a member is suspected.
        down_after_s: silence after which it is taken for gone; at least `suspect_after_s`.

    Raises:
        HeartbeatError: the limits are not ``0 < suspect_after_s <= down_after_s < infinity``.
    """

    def __init__(self, suspect_after_s: float, down_after_s: float) -> None:
        if not (0 < suspect_after_s <= down_after_s and math.isfinite(down_after_s)):
            raise HeartbeatError(
                f"found suspect_after_s={suspect_after_s!r} and down_after_s={down_after_s!r}, "
                "expected 0 < suspect_after_s <= down_after_s"
            )
        self.suspect_after_s = suspect_after_s
        self.down_after_s = down_after_s
        self._watched: dict[str, _Watched] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """Who is watched, in the order in which they were expected."""
        return tuple(self._watched)

    def expect(self, member: str, now: float) -> None:
        """Watch a member from now on, as if it had just been heard. A member that is watched already starts afresh."""
        self._watched[member] = _Watched(now)

    def beat(self, member: str, now: float) -> bool:
        """Note that a member was heard. Clears a suspicion.

        Args:
            now: when it was heard; a beat older than the last one is no news.

        Returns:
            Whether the member is watched: a beat from anybody else changes nothing.
        """
        watched = self._watched.get(member)
        if watched is None:
            return False
        if now >= watched.heard_s:
            watched.heard_s = now
            watched.suspected = False
        return True

    def forget(self, member: str) -> None:
        """Watch a member no longer, for example because it was stopped on purpose. Unknown members are ignored."""
        self._watched.pop(member, None)

    def check(self, now: float) -> list[Suspicion | Death]:
        """Who has become silent since the last check. Each suspicion and each death is told once for a silence.

        A member that is found silent beyond `down_after_s` at once is told as dead only.
        """
        news: list[Suspicion | Death] = []
        for member, watched in list(self._watched.items()):
            silent_s = now - watched.heard_s
            if silent_s >= self.down_after_s:
                del self._watched[member]
                news.append(Death(member, silent_s))
            elif silent_s >= self.suspect_after_s and not watched.suspected:
                watched.suspected = True
                news.append(Suspicion(member, silent_s))
        return news

    def next_due_s(self) -> float | None:
        """The earliest time at which `check` can have news; None if nobody is watched. For timers and virtual time."""
        return min(
            (
                watched.heard_s + (self.down_after_s if watched.suspected else self.suspect_after_s)
                for watched in self._watched.values()
            ),
            default=None,
        )
