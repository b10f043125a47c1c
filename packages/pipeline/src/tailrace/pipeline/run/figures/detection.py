"""What detection took for down: wrongly, and too late. Folded from the event log.

A detection is a member that was taken for down although nobody saw its process end. It is *false* if no fault had been injected
into that process: an outside cause, if there was one, is not in the log. It is *late* if silence or standing still had lasted
longer than the policy's window by more than `SLACK_S` when it was noticed. A process that was killed and whose end was not
known within `KILL_S`, and one that was stopped and stayed unnoticed for longer than its window, count as late too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace import contracts as c

SLACK_S = 5.0  # between two looks
KILL_S = 5.0
_AGES = {c.Why.STILL: "still_s", c.Why.SILENT: "silent_s", c.Why.MACHINE_SILENT: "silent_s"}
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class DetectionFigures:
    """Detections of a run.

    Args:
        detections: members that were taken for down.
        false_detections: those into which no fault had been injected.
        late_detections: faults that were noticed later than they should have been, or not at all.
    """

    detections: int = 0
    false_detections: int = 0
    late_detections: int = 0


class DetectionFold:
    """Follows injected faults and detections through a log.

    Args:
        policy: says how long a fault of a role may stay unnoticed.
    """

    def __init__(self, policy: c.DetectionPolicy) -> None:
        self._policy = policy
        self._struck: dict[Key, tuple[float, str]] = {}  # by members whose end is not known yet
        self._found: set[tuple[Key, float]] = set()
        self._detections = self._false = self._late = 0
        self._now = 0.0

    @property
    def hears(self) -> dict[type, Callable[[float, Any], None]]:
        """The events and commands that it follows: each is taken with its time, in seconds on the run's clock."""
        return {
            c.Struck: self._strikes,
            c.Down: self._down,
            c.Restart: self._ends,
            c.Stop: self._ends,
            c.Resumed: self._resumed,
            c.Tick: self._tick,
        }

    def figures(self) -> DetectionFigures:
        """What was found so far. A member that hangs and has not been noticed for too long counts already."""
        missed = sum(
            self._now - struck_s > self._policy.within_s(role) + SLACK_S
            for (role, _), (struck_s, kind) in self._struck.items()
            if kind == "hang"
        )
        return DetectionFigures(self._detections, self._false, self._late + missed)

    def _tick(self, now: float, event: c.Tick) -> None:
        del event
        self._now = now

    def _strikes(self, now: float, event: c.Struck) -> None:
        self._struck.setdefault((event.role, event.id.partition(".")[0]), (now, event.kind))

    def _down(self, now: float, event: c.Down) -> None:
        struck = self._struck.pop((event.role, event.id), None)
        if struck is not None and struck[1] == "kill":
            self._late += now - struck[0] > KILL_S
        self._found.add(((event.role, event.id), now))

    def _ends(self, now: float, command: c.Restart | c.Stop) -> None:
        key = command.role, command.id
        struck = self._struck.pop(key, None)
        why = command.reason.why
        if why not in c.SUSPICIONS or why is c.Why.DIFFERS or (key, now) in self._found:
            return  # other weights are no sign of death
        self._detections += 1
        self._false += struck is None and command.reason.why is not c.Why.HYBRID
        age = _AGES.get(command.reason.why)
        if struck is not None and age is not None:
            numbers = command.reason.numbers
            self._late += numbers.get(age, 0.0) > numbers.get("limit_s", 0.0) + SLACK_S

    def _resumed(self, now: float, event: c.Resumed) -> None:
        del now, event
        self._struck.clear()
