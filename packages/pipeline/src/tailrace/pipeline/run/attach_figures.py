"""How often another controller took the place of one that died, and whom that cost a restart, folded from the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import Instant


def attach_figures(log: Iterable[Instant]) -> dict[str, Any]:
    """Fields of a summary: `controller_attaches` counts the controllers that attached to members of one that died;
    `restarts_by_attach` the members that they restarted at once although they had not died."""
    attaches = restarts = 0
    for instant in log:
        if not any(isinstance(event, c.Attached) for event in instant.events):
            continue
        attaches += 1
        down = {(event.role, event.id) for event in instant.events if isinstance(event, c.Down)}
        restarted = [(one.role, one.id) for one in instant.commands if isinstance(one, c.Restart)]
        restarts += sum(key not in down for key in restarted)
    return {"controller_attaches": attaches, "restarts_by_attach": restarts}
