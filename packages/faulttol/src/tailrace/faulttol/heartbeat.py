"""Which members have been silent for too long. Pure: time is an argument.

States of a member:

    expect ─► heard ──suspect_after_s──► suspected ──down_after_s──► dead, and no longer watched
                ▲  ▲                         │
                │  └────────── beat ─────────┘
                └ beat

A dead member is watched again only after a new `expect`. Its late beats do not revive it, since others have its work by then.
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
    """A member has been silent for so long that it counts as gone.

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
    """Tells which members are silent (Laminar sections 3.3 and 4.3: heartbeat-based failover).

    Args:
        suspect_after_s: silence after which a member is suspected.
        down_after_s: silence after which it counts as gone; at least `suspect_after_s`.

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
        """The watched members, in the order in which they were expected."""
        return tuple(self._watched)

    def expect(self, member: str, now: float) -> None:
        """Watch a member from now on, as if it had just been heard, even if it is watched already."""
        self._watched[member] = _Watched(now)

    def beat(self, member: str, now: float) -> bool:
        """Note that a member was heard. Clears a suspicion.

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
            watched.suspected = False
        return True

    def forget(self, member: str) -> None:
        """Watch a member no longer, for example because it was stopped on purpose. Unknown members are ignored."""
        self._watched.pop(member, None)

    def check(self, now: float) -> list[Suspicion | Death]:
        """Members that became silent since the last check. Each suspicion and each death is returned once per silence.

        A member that the last check found well and this one silent beyond `down_after_s` is returned only as dead.
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
        """The earliest time at which `check` can return something; None if no member is watched."""
        return min(
            (
                watched.heard_s + (self.down_after_s if watched.suspected else self.suspect_after_s)
                for watched in self._watched.values()
            ),
            default=None,
        )
