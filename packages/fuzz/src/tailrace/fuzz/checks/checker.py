"""All checks over one run: an observer of its events and commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from tailrace import contracts as c
from tailrace.contracts.testing import check_reason
from tailrace.controller.controller import Controller
from tailrace.controller.view import RunView
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fuzz.case import Case
from tailrace.fuzz.checks.bookkeeping import check_books, rebuild, replayed, same_commands
from tailrace.fuzz.checks.data_plane import DataPlane
from tailrace.fuzz.checks.devices import DeviceCheck
from tailrace.fuzz.checks.progress import PROGRESS, LivenessCheck
from tailrace.fuzz.checks.training import ONCE, Training
from tailrace.fuzz.checks.turns import TurnCheck
from tailrace.fuzz.checks.weight_versions import VersionCheck
from tailrace.fuzz.errors import InvariantError
from tailrace.fuzz.faults import BreakKind
from tailrace.runtime.executor.executor import Executor

RESTARTS = "a controller that attaches restarts nobody"


class Checker:
    """Sees everything that a run does, and raises at the event that breaks an invariant.

    `stepped` is told how many steps the trainer has made; `silenced` are members that could not answer for a while.

    Args:
        simulation: the run.
        plane: what members really did.
    """

    def __init__(self, case: Case, simulation: Simulation, plane: DataPlane) -> None:
        self._case, self._simulation = case, simulation
        self.training = Training(case, simulation.fleet.spec, plane)
        self.devices = DeviceCheck()
        self.turns = TurnCheck(simulation.fleet.spec.environment_sessions)
        self.versions = VersionCheck(
            mixes_versions=simulation.fleet.spec.sync.mixes_versions, fence=case.fence, peers=case.peers
        )
        self.progress = LivenessCheck(case, simulation.fleet)
        self.events: Counter[str] = Counter()
        self.stepped: Callable[[int], None] = lambda _: None
        self.silenced: Collection[tuple[str, str]] = ()
        self._steps = 0
        self._held: Collection[str] = ()  # replicas that waited for their devices after the last instant
        self._shadow: Controller | None = None
        training, versions, devices, turns = self.training, self.versions, self.devices, self.turns
        self._on_event = {
            c.Scored: (training.scored,),
            c.ScoringFailed: (training.scoring_failed,),
            c.Refused: (training.refuses, devices.left),
            c.Finished: (devices.left,),
            c.TurnEnded: (devices.left, turns.turn_ended),
            c.Turned: (turns.turned,),
            c.CallFailed: (training.call_failed, turns.call_failed),
            c.Interrupted: (devices.left,),
            c.Accumulated: (training.accumulated,),
            c.Stepped: (training.stepped,),
            c.Up: (training.up, versions.up, turns.up, devices.up),
            c.Offloaded: (devices.offloaded,),
            c.Down: (versions.down, devices.down, turns.down),
            c.Resumed: (training.resumed, versions.resumed, devices.resumed, turns.resumed),
            c.Pulled: (versions.pulled,),
            c.PullFailed: (versions.pull_failed,),
            c.Published: (versions.published,),
            c.Durable: (versions.saved,),
        }

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Everything of one instant.

        Raises:
            InvariantError: an invariant does not hold.
        """
        for event in events:
            self.events[type(event).__name__] += 1
            for take in self._on_event.get(type(event), ()):
                take(event)  # type: ignore[operator]
            self.progress.seen(event, now)
            if isinstance(event, c.Down) and event.reason.startswith("waited "):
                self._check_late(event)
            elif isinstance(event, c.Attached):
                _check_attached(events, commands, self._held)
        controller = self._simulation.controller
        self._held = set(controller.failures.held)
        self.versions.routes([command for command in commands if isinstance(command, c.Route)])
        self.devices.restarts(commands)
        for command in commands:
            self._command(command, controller)
        if self._shadow is not None:
            same_commands(now, commands, self._shadow.handle_all(events, now))
        if controller.failure is None:  # what came with a failure is not looked at any more
            check_books(controller, self.versions.pulling)
        self.progress.check(now, run)
        executor = self._simulation.executor
        gone = executor.awaited.difference(executor.members.values())
        if gone:
            raise InvariantError(PROGRESS, f"members that are gone are waited for: {sorted(map(str, gone))}")
        steps = sum(type(event) is c.Stepped for event in events)
        if steps:
            self._steps += steps
            self.stepped(self._steps)
        if not controller.over:
            return
        if controller.finished:
            self.training.finished(controller)
            self.turns.finished(controller)
            self._check_store()
        elif controller.failure is not None:
            self.progress.gave_up(controller.failure)
        self._rebuilt(from_file=False)

    def _check_silent(self, command: c.Restart | c.Stop) -> None:
        """Detection says who is silent, and no `Down` tells of it: who takes the member's place, or ends it, does."""
        silent = command.reason.why in (c.Why.SILENT, c.Why.MACHINE_SILENT)
        if silent and (command.role, command.id) not in self.silenced:
            raise InvariantError(
                PROGRESS, f"{command.role} {command.id} is taken for silent, but nothing kept it from answering"
            )

    def _check_late(self, event: c.Down) -> None:
        """A member that missed a deadline was kept from answering, or says nothing of what the case lets it keep to itself."""
        case, silenced = self._case, {role for role, _ in self.silenced}
        keeps = {"ranker"} | ({"scorer"} if case.unscored else set()) | ({"trainer"} if case.hurries else set())
        keeps |= {"data"} if case.drops_s else set()  # it drops what one abort names after the other
        keeps |= {"environment"} if case.environments.unanswered else set()
        keeps |= {"trainer"} if any(fault.kind is BreakKind.STUCK_CHECKPOINT for fault in case.faults) else set()
        if event.role not in keeps and event.role not in silenced and "relay" not in silenced:
            raise InvariantError(
                PROGRESS, f"{event.role} {event.id} is down: {event.reason}; nothing kept it from answering"
            )

    def tick(self, now: float, executor: Executor) -> None:
        """Nothing is periodic here."""

    def _check_store(self) -> None:
        left = sorted(self.training.dropped & self._simulation.world.tokens.trajectories.keys())
        if left:
            raise InvariantError(ONCE, f"at the end the store still holds {left!r:.120}, which were dropped")

    def rebuild(self, *, compared: bool = True) -> Controller:
        """The driver died: another controller from its log. The one that died decides on beside it, for comparison.

        Args:
            compared: whether the log has all that it decided; if not, the two need not be equal.

        Raises:
            InvariantError: the rebuilt one is not the same.
        """
        if not compared:
            self._shadow = None
            return replayed(self._simulation.fleet, self._simulation.log.instants)
        self._shadow = self._simulation.controller
        return self._rebuilt(from_file=True)

    def replay(self) -> None:
        """The controller could die here: what its log rebuilds decides on beside it, for comparison."""
        self._shadow = self._rebuilt(from_file=True)

    def _rebuilt(self, *, from_file: bool) -> Controller:
        simulation = self._simulation
        return rebuild(simulation.fleet, simulation.log.instants, simulation.controller, from_file=from_file)

    def _command(self, command: c.Command, controller: Controller) -> None:
        for reason in getattr(command, "reasons", None) or [getattr(command, "reason", None)]:
            if isinstance(reason, c.Reason):
                check_reason(reason, type(command).__name__)
        if isinstance(command, c.Route):
            self.training.route(command)
            self.devices.route(command)
            self.turns.route(command)
        elif isinstance(command, c.Call):
            self.turns.call(command, controller)
        elif isinstance(command, c.Close):
            self.turns.close(command)
        elif isinstance(command, c.Lend):
            self.devices.lend(command, controller)
        elif isinstance(command, c.Return):
            self.devices.give_back(command, controller)
        elif isinstance(command, c.Offload):
            self.devices.offload(command, controller)
        elif isinstance(command, c.Pull):
            self.versions.pull(command, controller)
        elif isinstance(command, c.Restart):
            self._check_silent(command)
            self.progress.replaced(command)
            self.versions.restart(command)
            self.devices.restart(command, controller)
            self.turns.ends(command)
        elif isinstance(command, c.Stop):
            self._check_silent(command)
            self.progress.replaced(command)
            self.versions.stop(command)
            self.turns.ends(command)
        elif isinstance(command, c.Resize):
            self.versions.resize(command)
            self.devices.resize(command, controller)
        elif isinstance(command, c.Start):
            self.devices.start(command, controller)
        elif isinstance(command, c.Step):
            self.training.step(command, controller)
            self.devices.step(controller)
        elif isinstance(command, c.Accumulate):
            self.training.accumulate(command, controller)
            self.devices.accumulate(command, controller)
        elif isinstance(command, c.Abort):
            self.training.abort(command, controller)
            self.devices.abort(command)
            self.turns.abort(command)


def _check_attached(events: Sequence[c.Event], commands: Sequence[c.Command], held: Collection[str]) -> None:
    down = {(event.role, event.id) for event in events if isinstance(event, c.Down)}
    down |= {("replica", name) for name in held}  # they died before; their devices may be free now
    alone = [one for one in commands if isinstance(one, c.Restart) and one.reason.why is not c.Why.TASK_RESTART]
    with_a_hybrid = [one for one in alone if one.reason.why is c.Why.HYBRID and ("replica", one.reason.who) in down]
    down |= {(command.role, command.id) for command in with_a_hybrid}  # its fault is the trainer's
    left = {
        machine for one in alone if (one.role, one.id) in down for machine in one.place.avoid
    }  # for the dead's sake
    moved = [one for one in alone if one.reason.why is c.Why.MACHINE and one.reason.who in left]
    down |= {(command.role, command.id) for command in moved}
    restarted = {(command.role, command.id) for command in alone}
    if restarted - down:
        raise InvariantError(RESTARTS, f"it restarts {sorted(restarted - down)!r:.120}, which did not die")
