"""One trial: run a case, and say what broke, if anything did."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.fleetsim.errors import DriverDiedError
from tailrace.fleetsim.host.failures import Injuries
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.results.log import MemoryLog
from tailrace.fuzz.case import Case
from tailrace.fuzz.checks.checker import Checker
from tailrace.fuzz.checks.data_plane import DataPlane, Lineage
from tailrace.fuzz.controller_deaths import ControllerDiedError, Deaths, LastWords, MortalLog, wakes
from tailrace.fuzz.errors import InvariantError
from tailrace.fuzz.faults import CaseFault, Moment
from tailrace.fuzz.members import FuzzModels
from tailrace.fuzz.messages import Messages
from tailrace.fuzz.policies import NONE, POLICIES, Policies
from tailrace.fuzz.store import Store
from tailrace.fuzz.strikes import Strikes
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.runtime.executor.deployment import Deadlines
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.roster import Roster

_NUMBER = re.compile(r"[re]?\d[\w.]*")

FORGOTTEN_S = (
    600.0  # for which a scorer that may forget scores is waited for; else a run is at its limit before its end
)

CRASHED, SAME = "the run does not break down", "the same seed gives the same bytes"


@dataclass(frozen=True, slots=True)
class Violation:
    """What broke.

    Args:
        invariant: which invariant, by name.
        what: one line.
        event: how many events the controller had handled.
        at_s: seconds of the run.
        where: the traceback, where something broke down.
    """

    invariant: str
    what: str
    event: int
    at_s: float
    where: str = ""

    def same_as(self, other: Violation | None) -> bool:
        """Whether the same thing broke, whoever it befell."""
        return other is not None and self.kind == other.kind

    @property
    def kind(self) -> str:
        """What broke without its numbers and names: equal for what has probably one cause."""
        return f"{self.invariant}: {_NUMBER.sub('#', self.what.partition(':')[0])}"

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what} (event {self.event}, {self.at_s:.3f} s)"


@dataclass(slots=True)
class Trial:
    """What one run of a case showed.

    Args:
        failure: what broke; None if everything held.
        ended: "finished", or "gave up" with a reason that holds.
        digest: of the event log.
        instants, duration_s: how much happened.
        covered: how often what was exercised.
    """

    case: Case
    failure: Violation | None = None
    ended: str = ""
    digest: str = ""
    instants: int = 0
    duration_s: float = 0.0
    covered: dict[str, Counter[str]] = field(default_factory=dict)


def run_case(case: Case, policies: Policies = NONE, *, twice: bool = False) -> Trial:
    """Run a case.

    Args:
        policies: those of yours that take part, by axis.
        twice: run it again, and hold the two event logs against each other.

    Raises:
        CaseError: the case cannot be.
    """
    fuzz = FuzzSimulation(case, policies)
    simulation = fuzz.simulation
    trial = Trial(case)
    try:
        fuzz.run()
    except Exception as error:  # whatever it is, it is what this case found
        trial.failure = _failure(simulation, error)
    else:
        trial.ended = "finished" if simulation.controller.finished else "gave up"
    trial.instants, trial.duration_s = len(simulation.log.instants), simulation.now
    trial.covered = _covered(case, fuzz)
    if twice and trial.failure is None:
        trial.digest = MemoryLog(simulation.log.instants).digest()
        again = FuzzSimulation(case, policies)
        again.run()
        digest = MemoryLog(again.simulation.log.instants).digest()
        if digest != trial.digest:
            trial.failure = Violation(SAME, f"two runs have the event logs {trial.digest} and {digest}", 0, 0.0)
    return trial


def _failure(simulation: Simulation, error: Exception) -> Violation:
    handled, now = simulation.handled, simulation.now
    if isinstance(error, InvariantError):
        return Violation(error.invariant, error.what, handled, now)
    frames = "".join(traceback.format_exception(error))
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} in {last.name}"
    return Violation(CRASHED, f"{place}: {error}", handled, now, frames)


def _covered(case: Case, fuzz: FuzzSimulation) -> dict[str, Counter[str]]:
    simulation, checker = fuzz.simulation, fuzz.checker
    run = simulation.controller.view
    engines = [replica.engine for replica in simulation.models.replicas.values()]
    counts, came_and_went = run.counts, ReplicaFigures()
    for instant in simulation.log.instants:
        came_and_went.observe(*instant)
    return {
        "policies": Counter(f"{axis} {getattr(case.pipeline, axis).name}" for axis in POLICIES),
        "faults": fuzz.strikes.struck.copy(),
        "events": checker.events,
        "happened": Counter(
            {
                "trajectories trained on": len(checker.training.trained),
                "trajectories trained on again after a fall-back": checker.training.undone,
                "groups filtered": counts.filtered,
                "groups failed": counts.failed,
                "surplus samples dropped": counts.surplus_trajectories,
                "trajectories continued under newer weights": counts.resumed_on_newer,
                "trajectories generated again": counts.regenerated_trajectories,
                "replicas emptied by relocation": run.moves,
                "evictions": run.evictions,
                "interrupting pulls": run.interrupting_pulls,
                "preemptions": sum(engine.preemptions for engine in engines),
                "evaluations": len(run.evaluations),
                "replica restarts": run.replica_restarts,
                "machines lent to the trainer": run.lent_machines,
                "trainers that took newer weights": fuzz.lineage.taken,
                "replicas added": came_and_went.added,
                "replicas removed": came_and_went.removed,
            }
        ),
    }


# A run of a case: the executor and the controller of real runs, on a virtual host where everything may break.
#
# What breaks is scripted by the case: messages, injuries and the store are objects that the host is given. Every event and
# command, and what members really do, goes to the checks.


class FuzzSimulation:
    """One run of a case.

    Args:
        case: what runs and what breaks.
        policies: those of yours that take part, by axis.
    """

    def __init__(self, case: Case, policies: Policies = NONE) -> None:
        fleet = case.fleet(policies)
        mixes = fleet.spec.sync.mixes_versions
        random = Random(f"what happens in case {case.seed}")
        plane, lineage = DataPlane(mixes_versions=mixes), Lineage()
        store = Store(
            fleet.workload,
            fleet.samples,
            mixes_versions=mixes,
            plane=plane,
            ends_in_environment=case.ends_in_environment,
        )
        world = World(fleet, tokens=store, injuries=Injuries(kept_versions=case.weights.keep), reorders=True)
        self._deaths = Deaths()
        messages = Messages(case.messages, random, self._deaths)
        patience_s = case.patience_s(fleet.samples)
        deadlines = Deadlines.all(patience_s, suspect_s=fleet.delays.hang_s / 2)
        self.case = case
        self._all_logged = True  # whether the log has all that the controller decided
        self._changes = Random(f"changes in case {case.seed}")
        self.simulation = Simulation(
            fleet,
            transport=messages,
            models=FuzzModels(
                world,
                plane,
                lineage,
                case,
                random,
                predicting=Random(f"what is predicted in case {case.seed}"),
                answering=Random(f"what environments do in case {case.seed}"),
            ),
            deadlines=dataclasses.replace(
                deadlines,
                call_s=min(patience_s, case.call_s),
                step_s=patience_s if case.step_s is None else min(patience_s, case.step_s),
                score_s=min(patience_s, FORGOTTEN_S) if case.unscored else patience_s,
            ),
            log=MortalLog(self._deaths),
        )
        store.given_up = lambda replica: replica in self.simulation.controller.failures.held
        self.lineage = lineage
        self.checker = Checker(case, self.simulation, plane)
        self.simulation.observers += [self.checker, LastWords(self._deaths)]
        self.simulation.executor = self._executor()
        self.strikes = Strikes(case.faults, self.simulation, messages, self._replay, self._deaths)
        self.checker.stepped, self.checker.silenced = self.strikes.reached, self.strikes.silenced

    def run(self, first: c.Resumed | None = None) -> None:
        """Run to the end.

        Args:
            first: what a run that goes on begins with, see `crash`; None: it is new.

        Raises:
            InvariantError: an invariant does not hold.
        """
        if first is None:
            self.strikes.reached(0)
        died: DriverDiedError | None = None
        while True:
            try:
                if isinstance(died, ControllerDiedError):
                    self._attach(died.fault)
                else:
                    self.simulation.run(first if died is None else self.crash())
                return
            except DriverDiedError as error:
                died = error
                if isinstance(error, ControllerDiedError) and error.fault.moment is Moment.BEFORE_LOG:
                    self._all_logged = False

    def _attach(self, fault: CaseFault) -> None:
        """Another controller takes the place of one that died: it replays the log, and runs to the end.

        Meanwhile members go on, and what they say to nobody is told again. A little later the first one wakes up.
        """
        simulation, time, dead = self.simulation, self.simulation.world.time, self.simulation.executor
        until_s = simulation.now + fault.for_s
        while simulation.now < until_s:
            time.wait(until_s)
        simulation.controller = self._rebuilt()
        simulation.host.epoch += 1
        simulation.executor = self._executor()
        roster = Roster()
        for (_, events, commands), heard in zip(simulation.log.instants, simulation.log.heard, strict=True):
            roster.note(events, commands, heard)
        time.at(simulation.now + 0.5 * simulation.host.poll_s, wakes, dead)
        simulation.run(c.Attached(simulation.host.epoch, fault.for_s), attached=roster)

    def crash(self) -> c.Resumed:
        """The driver dies with every role. What it had heard is in the log; the store says what survived.

        Every other time the run goes on with more steps or another number of replicas.
        """
        simulation = self.simulation
        simulation.controller = self._rebuilt()
        simulation.host.close()
        simulation.host.reporting.clear()
        simulation.host.unreachable_until_s.clear()
        simulation.world.time.clear()
        simulation.executor = self._executor()
        self.strikes.again()
        steps = replicas = None
        if self._changes.random() < 0.5:
            steps = simulation.controller.view.steps + self._changes.choice([0, 1, 2])
            replicas = self._changes.randint(1, self.case.replicas + 1)
        return c.Resumed(simulation.world.checkpoints, steps, replicas)

    def _replay(self) -> None:
        if self._all_logged:  # one that died before it wrote to the log has decided more than that has
            self.checker.replay()

    def _rebuilt(self) -> Controller:
        compared, self._all_logged = self._all_logged, True
        return self.checker.rebuild(compared=compared)

    def _executor(self) -> Executor:
        simulation = self.simulation
        return Executor(simulation.host, simulation.deployment, observers=simulation.observers)
