"""One trial: run a case, and say what broke, if anything did."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tailrace.fleetsim.log import MemoryLog
from tailrace.fleetsim.simulator import Simulation
from tailrace.fuzz.case import Case
from tailrace.fuzz.errors import InvariantError
from tailrace.fuzz.policies import NONE, POLICIES, Policies
from tailrace.fuzz.simulation import FuzzSimulation
from tailrace.pipeline.run.replica_figures import ReplicaFigures

_NUMBER = re.compile(r"[re]?\d[\w.]*")

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
                "replicas added": came_and_went.added,
                "replicas removed": came_and_went.removed,
            }
        ),
    }
