"""Simulates one point, and measures what a result does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailrace import contracts as c
from tailrace.controller.members import REPLICA
from tailrace.controller.view import RunView
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.host.simulator import Models, Simulation
from tailrace.fleetsim.reproduce.points import Point
from tailrace.fleetsim.reproduce.steps import StepParts, StepWatcher
from tailrace.fleetsim.results.log import MemoryLog
from tailrace.fleetsim.results.result import Result, result_of
from tailrace.pipeline.run.figures.effective_time import EffectiveFigures, EffectiveTime
from tailrace.runtime.executor.executor import Executor, Observer

OBSERVED = "r0"


@dataclass(frozen=True, slots=True)
class ProbeFindings:
    """What one simulation found.

    Args:
        completed_staleness: number of trajectories by the versions that the trainer was ahead at their completion.
        pull_s, prefill_s, decode_s: of one replica, for each measured batch.
        commands: sent to one replica for each measured batch, by kind.
        overheads_s: of each repack: until the destination has prefilled what it was given.
        versions_mixed: trajectories whose tokens came from more than one version.
        recovered_s: from a replica's death until its successor has weights to generate with, of the last one; 0 if none died.
        first_routed: trajectories in the first work of each replica, on average.
        open_groups: the most that were open at once.
        states: of one replica at its snapshots: trajectories that ran, tokens in its KV cache.
        lags: staleness of each measured batch's trajectories.
        groups: prompts of the fleet's batch; a bound's room is so many times its batches.
        mean_tokens: of a trained trajectory, prompt included.
        steps: where the time of each measured step goes; only with the probe ``"steps"``.
        effective: effective training time; only with the probe ``"effective"``.
    """

    result: Result
    completed_staleness: dict[int, int]
    pull_s: float
    prefill_s: float
    decode_s: float
    commands: dict[str, float]
    overheads_s: list[float]
    versions_mixed: int
    recovered_s: float
    first_routed: float
    open_groups: int
    states: list[tuple[int, float]]
    lags: list[dict[int, int]]
    groups: int
    mean_tokens: float
    steps: list[StepParts]
    effective: EffectiveFigures | None


def measure(point: Point) -> ProbeFindings:
    """Simulate a point.

    Raises:
        TailraceError: it cannot be, or would hang.
    """
    config = point.config()
    fleet = build_fleet(config, seed=config.seed)
    watcher = Watcher(fleet, moves=point.probe == "moves")
    timed = StepWatcher() if point.probe == "steps" else None
    effective = EffectiveWatcher(fleet) if point.probe == "effective" else None
    observers: list[Observer] = [one for one in (watcher, timed, effective) if one is not None]
    simulation = Simulation(fleet, observers=observers, keep_events=False)
    watcher.models = simulation.models
    if timed is not None:
        timed.simulation = simulation
    simulation.run()
    result = replace(result_of(simulation), events=MemoryLog(()))
    (begin, end), rows = simulation.measured(), simulation.rows[fleet.warm_up :]
    per = 1.0 / max(1, len(rows) * len(simulation.models.replicas))
    trained = sum(sum(row.lags.values()) for row in rows)
    return ProbeFindings(
        result=result,
        completed_staleness=dict(sorted(simulation.controller.view.staleness_at_completion.items())),
        pull_s=(end.pulling_s - begin.pulling_s) * per,
        prefill_s=(end.prefill_s - begin.prefill_s) * per,
        decode_s=(end.decode_s - begin.decode_s) * per,
        commands={kind: count * per for kind, count in watcher.counts(begin.at_s, end.at_s).items()},
        overheads_s=watcher.overheads_s,
        versions_mixed=len(watcher.mixed),
        recovered_s=max((back - died for died, back in watcher.recoveries.values()), default=0.0),
        first_routed=sum(count for _, count in watcher.first.values()) / max(1, len(watcher.first)),
        open_groups=watcher.open_groups,
        states=watcher.states,
        lags=[row.lags for row in rows],
        groups=fleet.spec.batch_groups,
        mean_tokens=sum(row.tokens for row in rows) / trained if trained else 0.0,
        steps=[] if timed is None else timed.steps[fleet.warm_up : fleet.batches],
        effective=None if effective is None else effective.figures(),
    )


class EffectiveWatcher:
    """Follows effective training time beside a simulation."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._devices = fleet.trainer_gpus
        self._fold: EffectiveTime | None = None

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """One instant."""
        self._fold = self._fold or EffectiveTime(run, self._devices)
        self._fold.observe(now, events, commands)

    def figures(self) -> EffectiveFigures:
        """What was found so far."""
        return EffectiveFigures() if self._fold is None else self._fold.figures()

    def tick(self, now: float, executor: Executor) -> None:
        """Nothing is periodic here."""


class Watcher:
    """An observer of a simulation.

    Args:
        fleet: what is simulated.
        moves: look at every trajectory that is routed, for what moves.
    """

    def __init__(self, fleet: SimulatedFleet, *, moves: bool) -> None:
        self.models: Models | None = None
        self.overheads_s: list[float] = []
        self.mixed: set[str] = set()
        self.recoveries: dict[str, tuple[float, float]] = {}
        self.first: dict[str, tuple[float, int]] = {}
        self.open_groups = 0
        self.states: list[tuple[int, float]] = []
        self._fleet, self._moves = fleet, moves
        self._sent: list[tuple[float, str]] = []
        self._died: dict[str, float] = {}

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """One instant."""
        for event in events:
            if type(event) is c.Down and event.role == REPLICA:
                self._died[event.id] = now - self._fleet.delays.detect_s
            elif type(event) is c.Snapshot:
                if event.replica == OBSERVED and event.running:
                    self.states.append((event.running, event.kv * event.kv_capacity_tokens))
            elif type(event) is c.Pulled and event.replica in self._died:
                self.recoveries[event.replica] = (self._died.pop(event.replica), now)
        for command in commands:
            if isinstance(command, c.Route | c.Pull | c.Interrupt):
                self._sent.append((now, type(command).__name__))
                if isinstance(command, c.Route):
                    self._routed(now, command)
        if commands:
            self.open_groups = max(self.open_groups, run.generating + run.buffered)

    def tick(self, now: float, executor: Executor) -> None:
        """Nothing is periodic here."""

    def counts(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Commands by kind, sent in an interval."""
        found: dict[str, int] = {}
        for now, kind in self._sent:
            if begin_s < now <= end_s:
                found[kind] = found.get(kind, 0) + 1
        return found

    def _routed(self, now: float, command: c.Route) -> None:
        begun, count = self.first.get(command.replica, (now, 0))
        if begun == now:
            self.first[command.replica] = (now, count + len(command.trajectories))
        if not self._moves:
            return
        assert self.models is not None
        version, tokens = self.models.replica(command.replica).version, self.models.world.tokens
        prefill = self._fleet.pool(command.replica).prefill
        seconds, moved = 0.0, 0
        for ref in command.trajectories:
            known = tokens.trajectories.get(ref.trajectory)
            if known is None or not known.kept:
                continue
            moved += 1
            seconds += prefill.seconds(known.sample.prompt_tokens + known.kept)
            if known.oldest != version:
                self.mixed.add(ref.trajectory)
        if moved:
            self.overheads_s.append(seconds + self._fleet.delays.route_s)
