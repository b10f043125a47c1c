"""How often another controller took the place of one that died, and whom that cost a restart, folded from the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace import contracts as c


class AttachFigures:
    """A fold over the instants of a log.

    `attaches` counts the controllers that attached to members of one that died; `restarts` the members that they restarted at
    once although they had not died.
    """

    def __init__(self) -> None:
        self.attaches = self.restarts = 0

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        del now
        if not any(isinstance(event, c.Attached) for event in events):
            return
        self.attaches += 1
        down = {(event.role, event.id) for event in events if isinstance(event, c.Down)}
        restarted = [(one.role, one.id) for one in commands if isinstance(one, c.Restart)]
        self.restarts += sum(key not in down for key in restarted)

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary."""
        return {"controller_attaches": self.attaches, "restarts_by_attach": self.restarts}
