"""What the trainer says of its own work: its phase, and which of its micro-batches are done.

    command begins ──► phase ──► micro-batches end ──every REPORT_S──► Activity ──► command ends ──► slowest_s of the phase

A micro-batch that ended is the sign of life of a trainer that computes: a rank that waits for another in a collective answers
its heartbeat all the while (RobustRL, section 4, looks at tensor cores for the same reason).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.contracts import Accumulate, Activity, Checkpoint, Command, Publish, Step

TRAINING, STEPPING, PUBLISHING, SAVING, IDLE = "training", "stepping", "publishing", "saving", "idle"
REPORT_S = 5.0  # shorter commands are told by their phase alone


class TrainerActivity:
    """Tells phases as they change, and micro-batches every `REPORT_S`. One thread uses it.

    Args:
        member: the trainer's id.
        tell: takes the events.
        watched: whether the backend says when a micro-batch ends; otherwise it is `STEPPING` while it trains.
        clock: seconds, never decreasing.
    """

    def __init__(
        self,
        member: str,
        tell: Callable[[Activity], None],
        *,
        watched: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._member, self._tell, self._clock = member, tell, clock
        computing = TRAINING if watched else STEPPING
        self._phases = {Step: computing, Accumulate: computing, Publish: PUBLISHING, Checkpoint: SAVING}
        self._phase, self._done = IDLE, 0
        self._slowest_s: dict[str, float] = {}
        self._began_s = self._told_s = self._moved_s = clock()

    def begins(self, command: Command) -> None:
        """A command begins."""
        self._began_s = self._moved_s = self._clock()
        self._at(self._phases.get(type(command), IDLE))

    def ended_micro_batch(self) -> None:
        """A micro-batch ended."""
        self._done += 1
        now = self._clock()
        self._slower(now - self._moved_s)
        self._moved_s = now
        if now - self._told_s >= REPORT_S:
            self._say(now)

    def ended(self, command: Command) -> None:
        """A command ended. Where no part of it is told, it counts as one."""
        if self._phases.get(type(command), IDLE) != TRAINING:
            self._slower(self._clock() - self._began_s)

    def idle(self) -> None:
        """There is no further command."""
        self._at(IDLE)

    def _slower(self, seconds: float) -> None:
        self._slowest_s[self._phase] = max(self._slowest_s.get(self._phase, 0.0), seconds)

    def _at(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._say(self._clock())

    def _say(self, now: float) -> None:
        self._told_s = now
        slowest_s = self._slowest_s.get(self._phase, 0.0)
        self._tell(Activity("trainer", self._member, self._phase, self._done, slowest_s=slowest_s))
