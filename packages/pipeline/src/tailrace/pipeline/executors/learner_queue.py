"""The trainer's queue: its commands go to every rank, one at a time and in order.

A rank's calls are collectives: the next command goes out when all ranks are through, or they would cross.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.executors.deployment import Deadlines
from tailrace.pipeline.executors.host import Member
from tailrace.pipeline.executors.waits import Waits, together

LearnerCommand = c.Publish | c.Checkpoint | c.Accumulate | c.Step


class LearnerQueue:
    """Owned by the executor's loop.

    Args:
        trained: called with the answer to each `Accumulate` and `Step`.
        broke: called with the reason when a rank fails.
    """

    def __init__(
        self,
        waits: Waits,
        now: Callable[[], float],
        deadlines: Deadlines,
        *,
        trained: Callable[[c.Accumulated | c.Stepped], None],
        broke: Callable[[str], None],
    ) -> None:
        self._waits, self._now, self._deadlines = waits, now, deadlines
        self._trained, self._broke = trained, broke
        self._commands: deque[LearnerCommand] = deque()
        self._busy = False
        self._up = False
        self._master: Any = None
        self.ranks: list[Member] = []

    def put(self, command: LearnerCommand) -> None:
        """Queue a command."""
        self._commands.append(command)
        self.go_on()

    def begin(self, ranks: Sequence[Member]) -> None:
        """A new trainer is starting; what the old one had not done is void."""
        self.ranks = list(ranks)
        self._commands.clear()
        self._busy = self._up = False

    def came_up(self) -> None:
        """The trainer serves."""
        self._up = True
        self.go_on()

    def publish_to(self, master: Any) -> None:
        """The master relay's address, None while there is none: then commands wait."""
        self._master = master
        self.go_on()

    def go_on(self) -> None:
        """Hand the next command to all ranks, if they are free."""
        if self._busy or not self._up or not self._commands or self._master is None:
            return
        command = self._commands.popleft()
        match command:
            case c.Step(version=version, mini_batches=batches):
                call: tuple[Any, ...] = ("step", version, batches)
                timeout_s = self._deadlines.step_s
            case c.Accumulate(version=version, trajectories=names):
                call, timeout_s = ("accumulate", version, names), self._deadlines.step_s
            case c.Publish(version=version):
                call, timeout_s = ("publish", command.seq, version, self._master), self._deadlines.publish_s
            case c.Checkpoint(version=version, keep=keep):
                call, timeout_s = ("checkpoint", command.seq, version, list(keep)), self._deadlines.publish_s
        self._busy = True
        ranks = list(self.ranks)
        self._waits.add(
            f"the trainer to {call[0]} version {version}",
            self._now(),
            timeout_s,
            together([rank.call(*call) for rank in ranks]),
            partial(self._done, command, ranks),
            partial(self._failed, ranks),
        )

    def _done(self, command: LearnerCommand, ranks: list[Member], results: list[Any]) -> None:
        if ranks != self.ranks:
            return  # of a trainer that is gone
        self._busy = False
        if isinstance(command, c.Step):
            self._trained(c.Stepped(command.version, dict(results[0]), answers=command.seq))
        elif isinstance(command, c.Accumulate):
            self._trained(c.Accumulated(command.version, command.trajectories, dict(results[0]), answers=command.seq))
        self.go_on()

    def _failed(self, ranks: list[Member], error: BaseException) -> None:
        if ranks == self.ranks:
            self._broke(str(error))
