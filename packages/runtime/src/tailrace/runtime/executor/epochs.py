"""What a member and the controllers that came after each other have said to each other, on every host.

A controller may die with answers that it has not logged. So a member numbers its events from 1 and keeps them until they are
acknowledged: the next controller gets them again. It takes each command once, by its number. Each controller has an epoch,
greater than all before it. Once a member has heard of an epoch, it refuses calls with a smaller one: a controller that was
stopped and wakes up after it was replaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.contracts import Command, Event
from tailrace.runtime.errors import StaleEpochError


class Correspondence:
    """The member's side of it. Not safe for threads.

    Args:
        epoch: of the first controller, if it is known.
    """

    __slots__ = ("_epoch", "_forgotten", "_kept", "_taken")

    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch
        self._taken = 0  # number of the newest command
        self._kept: list[Event] = []
        self._forgotten = 0  # events that were acknowledged, so the number of the last one

    def claim(self, epoch: int) -> None:
        """A controller calls.

        Raises:
            StaleEpochError: a later one has called before.
        """
        if epoch < self._epoch:
            raise StaleEpochError(
                f"found a call of controller {epoch}, expected one of {self._epoch}, which replaced it"
            )
        self._epoch = epoch

    def fresh(self, commands: Sequence[Command]) -> Sequence[Command]:
        """The commands that have not come before, in the order of their numbers; from now on they have."""
        if commands and commands[0].seq <= self._taken:
            commands = [command for command in commands if command.seq > self._taken]
        if commands:
            self._taken = commands[-1].seq
        return commands

    def numbered_anew(self) -> None:
        """The next controller is another run's, whose commands begin with number 1."""
        self._taken = 0

    def say(self, events: Sequence[Event]) -> None:
        """Events for the controller."""
        self._kept.extend(events)

    @property
    def number(self) -> int:
        """Number of the last event."""
        return self._forgotten + len(self._kept)

    def after(self, told: int) -> tuple[int, list[Event]]:
        """The number of the last event, and the events after number `told`."""
        return self.number, self._kept[max(0, told - self._forgotten) :]

    def acknowledge(self, logged: int) -> None:
        """Forget the events up to number `logged`: the controller's log has them."""
        if logged > self._forgotten:
            del self._kept[: logged - self._forgotten]
            self._forgotten = logged
