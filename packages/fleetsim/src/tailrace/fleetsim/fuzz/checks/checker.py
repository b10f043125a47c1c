"""All checks over one run: an observer of its events and commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace import contracts as c
from tailrace.fleetsim.errors import InvariantError
from tailrace.fleetsim.fuzz.checks.bookkeeping import check_books
from tailrace.fleetsim.fuzz.checks.progress import Progress
from tailrace.fleetsim.fuzz.checks.rebuild import rebuild, same_commands
from tailrace.fleetsim.fuzz.checks.training import Training
from tailrace.fleetsim.fuzz.checks.versions import Versions
from tailrace.pipeline.controller.controller import Controller

if TYPE_CHECKING:
    from tailrace.fleetsim.fuzz.simulation import FuzzSimulation


class Checker:
    """Sees everything that a run does, and raises at the event that breaks an invariant.

    Args:
        simulation: the run.
    """

    def __init__(self, simulation: FuzzSimulation) -> None:
        self._simulation = simulation
        self.training = Training(simulation.case, simulation.plane)
        self.versions = Versions(mixes_versions=simulation.fleet.spec.sync.mixes_versions)
        self.progress = Progress(simulation.case)
        self.events: Counter[str] = Counter()
        self._seen = 0  # events of this instant
        self._shadow: Controller | None = None
        training, versions = self.training, self.versions
        self._on_event = {
            c.Scored: (training.scored,),
            c.ScoringFailed: (training.scoring_failed,),
            c.Stepped: (training.stepped,),
            c.Up: (training.up, versions.up),
            c.Down: (versions.down,),
            c.Resumed: (training.resumed, versions.resumed),
            c.Pulled: (versions.pulled,),
            c.PullFailed: (versions.pull_failed,),
            c.Published: (versions.published,),
        }

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """One event was handled; the commands come with the last of those that arrived together.

        Raises:
            InvariantError: an invariant does not hold.
        """
        self.events[type(event).__name__] += 1
        for take in self._on_event.get(type(event), ()):
            take(event)  # type: ignore[operator]
        self.progress.seen(event, now)
        instant = self._simulation.log[-1][1]
        self._seen += 1
        if self._seen < len(instant):
            return
        self._seen = 0
        self.versions.routes([command for command in commands if isinstance(command, c.Route)])
        for command in commands:
            self._command(command, controller)
        if self._shadow is not None:
            same_commands(now, commands, self._shadow.handle_all(instant, now))
        check_books(controller)
        self.progress.check(now, controller)
        if not controller.over:
            return
        if controller.finished:
            self.training.finished(controller)
        elif controller.failure is not None:
            self.progress.gave_up(controller.failure)
        rebuild(self._simulation.fleet.spec, self._simulation.log, controller, from_file=False)

    def rebuild(self) -> Controller:
        """The controller died: another one from its log. The one that died decides on beside it, for comparison.

        Raises:
            InvariantError: the rebuilt one is not the same.
        """
        simulation = self._simulation
        died = simulation.controller
        rebuilt = rebuild(simulation.fleet.spec, simulation.log, died)
        self._shadow = died
        return rebuilt

    def _command(self, command: c.Command, controller: Controller) -> None:
        if isinstance(command, c.Route):
            self.training.route(command)
        elif isinstance(command, c.Pull):
            self.versions.pull(command)
        elif isinstance(command, c.Step):
            self.training.step(command, controller)
        elif isinstance(command, c.Accumulate):
            self.training.accumulate(command, controller)
        elif isinstance(command, c.Abort):
            self.training.abort(command, controller)


__all__ = ["Checker", "InvariantError"]
