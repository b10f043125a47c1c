"""The deaths of controllers whose members live on: at which moment of its work one dies, and who takes its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.contracts import Command, Event
from tailrace.controller.view import RunView
from tailrace.fleetsim.errors import DriverDiedError
from tailrace.fleetsim.results.log import InstantLog
from tailrace.fuzz.errors import InvariantError
from tailrace.fuzz.faults import CaseFault, Moment
from tailrace.runtime.errors import StaleEpochError
from tailrace.runtime.executor.doors import Mail, ask
from tailrace.runtime.executor.executor import Executor

REPLACED = "a controller that was replaced is refused"


class ControllerDiedError(DriverDiedError):
    """The controller dies alone.

    Args:
        fault: the fault that it dies of.
    """

    def __init__(self, fault: CaseFault) -> None:
        super().__init__(str(fault.moment))
        self.fault = fault


class Deaths:
    """Lets the controller die of a fault at the fault's moment."""

    def __init__(self) -> None:
        self._due: CaseFault | None = None
        self._sent = 0

    def strike(self, fault: CaseFault) -> None:
        """The controller dies at the fault's next moment. One that is due already comes first, and this one does nothing.

        Raises:
            ControllerDiedError: that is now.
        """
        if self._due is None:
            self._due, self._sent = fault, 0
            self.at(Moment.BETWEEN)

    def at(self, moment: Moment) -> None:
        """The controller has come to this moment of its work.

        Raises:
            ControllerDiedError: it dies here.
        """
        due = self._due
        if due is None or due.moment is not moment:
            return
        self._sent += 1
        if moment is Moment.SENDING and self._sent == 1:
            return  # something was sent before
        self._due = None
        raise ControllerDiedError(due)


class MortalLog(InstantLog):
    """The event log of a controller that may die before it writes an instant."""

    def __init__(self, deaths: Deaths) -> None:
        super().__init__(keep=True)
        self._deaths = deaths

    def append(
        self, now: float, events: Sequence[Event], commands: Sequence[Command], heard: Mapping[str, int]
    ) -> None:
        self._deaths.at(Moment.BEFORE_LOG)
        super().append(now, events, commands, heard)


class LastWords:
    """The last of a controller's observers: it may die when they have seen an instant, and nothing of it was sent."""

    def __init__(self, deaths: Deaths) -> None:
        self._deaths = deaths

    def observe(self, now: float, events: Sequence[Event], commands: Sequence[Command], run: RunView) -> None:
        """Die if it is time."""
        del now, events, run
        if commands:
            self._deaths.at(Moment.AFTER_LOG)

    def tick(self, now: float, executor: Executor) -> None:
        """Does nothing."""


def wakes(dead: Executor) -> None:
    """A controller that was taken for dead goes on where it was: it asks its members, and sends what it had not sent.

    Raises:
        InvariantError: a member that lives does not refuse it.
    """
    for running in list(dead.members.values()):
        if running.up:
            member: Any = running.member  # of the virtual host
            answer: Any = ask(member, Mail.events, dead.host.poll_s, running.told, running.logged)
            if member.lives and not (answer.done and isinstance(answer.exception(), StaleEpochError)):
                raise InvariantError(REPLACED, f"{running.name} answers a controller that another one has replaced")
            running.send()
