"""One run of a pipeline on a simulated fleet: the executor and the controller of real runs, on the virtual host.

Nothing is random here but what a seed decides beforehand (lengths, failures). The same seed gives the same event log.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.view import RunView
from tailrace.fleetsim.errors import StalledError
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.host.failures import RandomFailures
from tailrace.fleetsim.host.host import MessageTransport, VirtualHost
from tailrace.fleetsim.host.recorder import BatchRow, Totals
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.members.data import Data
from tailrace.fleetsim.members.environment import EnvironmentModel
from tailrace.fleetsim.members.ranker import RankerModel
from tailrace.fleetsim.members.relays import Relays
from tailrace.fleetsim.members.replica import ModelledReplica
from tailrace.fleetsim.members.scorer import ScorerModel
from tailrace.fleetsim.members.trainer import Trainer
from tailrace.fleetsim.results.log import InstantLog
from tailrace.pipeline.run.scripted_faults import further_faults
from tailrace.runtime.errors import RunFailedError
from tailrace.runtime.executor.deployment import (
    DATA,
    ENVIRONMENT,
    RANKER,
    RELAY,
    REPLICA,
    SCORER,
    TRAINER,
    Deadlines,
    Deployment,
)
from tailrace.runtime.executor.executor import Executor, Observer
from tailrace.runtime.executor.roster import Roster
from tailrace.runtime.executor.seam import RoleSpec

DETECTED_S = 30.0  # after its window, a member that stands still is down
IDLE_TICKS = 2_000  # a fleet in which so long nothing is under way will never move again
POLLS = 4  # questions for events before a silent member is suspected


class Models:
    """The modelled members of a world, by name."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.relays = Relays(world)
        self.trainer = self.new_trainer()
        self.data, self.scorer, self.ranker = self.new_data(), self.new_scorer(), self.new_ranker()
        self.replicas: dict[str, ModelledReplica] = {}
        self.environments: dict[str, EnvironmentModel] = {}

    def new_trainer(self) -> Trainer:
        """The trainer, not started."""
        return Trainer(self.world, self.relays)

    def new_data(self) -> Data:
        """The data role, not started."""
        return Data(self.world)

    def new_scorer(self) -> ScorerModel:
        """The scorer, not started."""
        return ScorerModel(self.world)

    def new_ranker(self) -> RankerModel:
        """The ranker, not started; only a pipeline with one starts it."""
        return RankerModel(self.world)

    def new_replica(self, name: str) -> ModelledReplica:
        """A replica, not started."""
        return ModelledReplica(self.world, self.relays, name, self.world.fleet.speed(name))

    def new_environment(self, id_: str) -> EnvironmentModel:
        """A member of the environment role, not started; only a pipeline with turns starts one."""
        return EnvironmentModel(self.world, id_)

    def environment(self, id_: str) -> EnvironmentModel:
        """The member of the environment role with an id."""
        if id_ not in self.environments:
            self.environments[id_] = self.new_environment(id_)
        return self.environments[id_]

    def replica(self, name: str) -> ModelledReplica:
        """The replica of a name."""
        if name not in self.replicas:
            self.replicas[name] = self.new_replica(name)
        return self.replicas[name]

    def factories(self) -> dict[str, Callable[[str], Any]]:
        """The model of each role, by a member's id."""
        return {
            DATA: lambda _: self.data,
            SCORER: lambda _: self.scorer,
            RANKER: lambda _: self.ranker,
            TRAINER: lambda _: self.trainer,
            RELAY: self.relays.relay,
            ENVIRONMENT: self.environment,
            REPLICA: self.replica,
        }


class Simulation:
    """One run.

    Args:
        fleet: the fleet to simulate.
        observers: see events and commands.
        transport: how messages travel; at once if None.
        keep_events: keep the event log, for replays and comparisons.
        log: stores the instants instead.
        models: the members; plain ones if None.
        deadlines: the executor's deadlines; None: derived from the fleet's delays.
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        *,
        observers: Sequence[Observer] = (),
        transport: MessageTransport | None = None,
        keep_events: bool = True,
        log: InstantLog | None = None,
        models: Models | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.fleet = fleet
        self.models = models or Models(World(fleet))
        self.world = self.models.world
        self.log = InstantLog(keep=keep_events) if log is None else log
        delays = fleet.delays
        self.host = VirtualHost(
            self.world.time,
            poll_s=delays.hang_s / (2 * POLLS),
            tick_s=delays.snapshot_s,
            detect_s=delays.detect_s,
            command_s=lambda role: delays.route_s if role == REPLICA else 0.0,
            transport=transport,
            machines=fleet.spec.machines,
        )
        self.world.time.settle = self._settle
        self.deadlines = deadlines or Deadlines.all(math.inf, suspect_s=delays.hang_s / 2)
        roles = {role: RoleSpec(factory) for role, factory in self.models.factories().items()}
        self.deployment = Deployment("simulated", "", roles, deadlines=self.deadlines, tp=fleet.pools[0].tp)
        self.observers: list[Observer] = [_Idle(self), *observers]
        self.failures = RandomFailures(fleet.failures, self.world.time, lambda: list(self.models.replicas), self.end)
        self.controller = Controller(fleet.spec, relays=fleet.relays)
        self.executor = Executor(self.host, self.deployment, observers=self.observers)

    @property
    def now(self) -> float:
        """Seconds on the run's clock."""
        return self.world.time.now()

    @property
    def rows(self) -> list[BatchRow]:
        """The batches behind the trainer's weights, in order."""
        return self.world.recorder.rows(self.controller.view)

    def measured(self) -> tuple[Totals, Totals]:
        """The sums where measuring begins and ends: behind the warm-up, and at the last batch, or at a failure before it."""
        fleet, rows, recorder = self.fleet, self.rows, self.world.recorder
        batches, warm_up = fleet.batches or fleet.spec.steps, fleet.warm_up
        end = recorder.then(rows[batches - 1]) if len(rows) >= batches else recorder.totals(self.now)
        if not warm_up:
            return Totals(), end
        return recorder.then(rows[warm_up - 1]) if len(rows) >= warm_up else end, end

    @property
    def handled(self) -> int:
        """Events that the controller took in."""
        return self.log.handled

    def run(self, first: c.Event | None = None, attached: Roster | None = None) -> None:
        """Run to the end, or until the controller fails.

        Args:
            first: the first event, see `Executor.run`.
            attached: what a controller that died had under way.

        Raises:
            StalledError: nothing is under way and nothing will be.
        """
        thresholds = gc.get_threshold()
        gc.set_threshold(10_000_000, *thresholds[1:])  # millions of objects come and go, and none of them in a cycle
        batches, run = self.fleet.batches or math.inf, self.controller.view
        try:
            self.executor.run(
                self.controller,
                self.log,
                first=first,
                faults=self.fleet.faults,
                further=() if self.fleet.config is None else further_faults(self.fleet.config),
                until=lambda: run.step >= batches,
                attached=attached,
            )
        except RunFailedError:
            pass  # the result says why
        finally:
            gc.set_threshold(*thresholds)

    def end(self, role: str, member: str) -> None:
        """A member dies by itself."""
        found = self.host.members.get((role, member))
        if found is not None and not found.dead:
            found.end("killed")

    def _settle(self) -> None:
        self.world.cores.settle()
        self.host.report()

    def stalled(self) -> str:
        """The state of the simulation in words."""
        view = self.controller.view
        return (
            f"after {self.now:.0f} s nothing is under way: trainer at version {view.version} of {view.steps}, "
            f"{view.pooled} trajectories wait for a replica, {view.buffered} groups for the trainer; expected somebody to work"
        )


class _Idle:
    """Notices a run that will never end; and lets time hurt whom it hurts."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._ticks = 0
        self._since_s = 0.0
        windows = map(simulation.fleet.spec.detection.within_s, (TRAINER, REPLICA))
        self._window_s = max((window_s for window_s in windows if math.isfinite(window_s)), default=0.0)

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Free data that is not needed any more once a version is durable."""
        del now, commands, run
        world = self._simulation.world
        for event in events:
            if type(event) is c.Durable and event.full:
                world.durable(event.version)

    def tick(self, now: float, executor: Executor) -> None:
        """Count ticks at which nothing is under way and no deadline is open. Who stands still may be noticed late."""
        simulation = self._simulation
        simulation.failures.strike()
        if not simulation.world.time.idle or math.isfinite(executor.deadline_s):
            self._ticks, self._since_s = 0, now
        self._ticks += 1
        if self._ticks > IDLE_TICKS and now - self._since_s > self._window_s + DETECTED_S:
            raise StalledError(simulation.stalled())
