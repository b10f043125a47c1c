"""The rollout coordinator: the snapshot-command cycle (StaleFlow, Algorithm 1) over the pool and the fleet.

    refill ──► pool ──► what moves, evaluations ──► sync ──► relocation ──► routing ──► Route
                ▲                                     │           │
                └──────────── Interrupted ◄───────────┴───────────┘

Where the paper issues Route commands that wait for an interruption or a pull, this one decides again when that is done: a
trajectory is in the pool only when its tokens are, and a replica is given work only when it serves a version. So commands
that depend on each other go in order, and those to different replicas side by side.

A cycle follows what changes what can be decided. Load alone, which every replica reports several times a second, calls for
one at most every `cycle_s` seconds.

One slow replica holds up nobody: load is validated for each replica by itself, and policies that plan with load leave out
those whose last snapshot does not show every command yet (SF-9).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence, Set

from tailrace import contracts as c
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.fleet import Fleet, ReplicaState
from tailrace.pipeline.controller.learner import Learner
from tailrace.pipeline.controller.ledger import GroupState, Ledger, TrajectoryState
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.spec import PipelineSpec

_LOAD = frozenset({c.Snapshot})
_PROGRESS = frozenset(
    {c.Finished, c.Interrupted, c.Scored, c.ScoringFailed, c.Durable, c.Suspect, c.Accumulated}
)  # a snapshot follows, or nothing does


class Coordinator:
    """Decides what replicas do. The state that it decides over belongs to others.

    Args:
        gate: admission at work.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        ledger: Ledger,
        fleet: Fleet,
        learner: Learner,
        evaluations: Evaluations,
        gate: c.AdmissionGate,
        outbox: Outbox,
    ) -> None:
        self.moves = 0
        self.evictions = 0
        self.interrupting_pulls = 0
        self.routings = 0
        self.blocked_cycles = 0
        self.last_plan_s = 0.0
        self.last_cycle_s = -math.inf
        self._seen: tuple[int, c.Cycle] | None = None
        self._spec, self._ledger, self._fleet, self._learner = spec, ledger, fleet, learner
        self._evaluations, self._gate, self._outbox = evaluations, gate, outbox

    @property
    def open_limit(self) -> int:
        """Groups that may be open at once: waiting, generating or complete."""
        limits = [limit for limit in (self._gate.room, self._spec.buffer_groups) if limit is not None]
        return min(limits, default=4 * self._spec.batch_groups)

    def progress(self) -> c.Progress:
        """How far the run is, for policies."""
        learner, ledger = self._learner, self._ledger
        return c.Progress(
            version=learner.version,
            published=learner.published,
            admitted=ledger.counts.admitted,
            generating=ledger.generating,
            buffered=len(ledger.buffered),
            consumed=learner.step * self._spec.batch_groups + len(learner.accumulated),
            dropped=ledger.counts.filtered + ledger.counts.failed,
            batch_groups=self._spec.batch_groups,
            last_version=self._spec.steps,
        )

    def due(self, kinds: Set[type], now: float) -> bool:
        """Whether events of these kinds call for a cycle."""
        others = kinds - _PROGRESS
        return bool(others - _LOAD) or (bool(others) and now - self.last_cycle_s >= self._spec.cycle_s)

    def run(self, now: float, *, stepped: bool) -> None:
        """One cycle.

        Args:
            stepped: the trainer has just updated the weights.
        """
        self.last_cycle_s = now
        self._refill()
        self._seen = None
        self._place_moving()
        self._evaluate()
        self._place_stranded()
        self._synchronise()
        self._relocate(now, stepped=stepped)
        self._place_waiting()

    # ---- the pool -------------------------------------------------------------------------------------------------

    def _refill(self) -> None:
        """Open groups while there is room and the batches that remain need them, so that the run leaves nothing behind."""
        counts, batching = self._ledger.counts, self._spec.batching
        if self._learner.step >= self._spec.steps:
            return
        wanted = self._spec.steps * self._spec.batch_groups + batching.surplus_groups
        limit = self.open_limit
        while (
            self._ledger.generating + len(self._ledger.buffered) < limit
            and counts.admitted - counts.filtered - counts.failed < wanted
        ):
            launch = batching.launch(self.progress())
            self._ledger.admit(launch.group, launch.samples)

    def _cycle(self) -> c.Cycle:
        """What policies decide from, as of now: made anew only after a command."""
        if self._seen is None or self._seen[0] != self._outbox.seq:
            self._seen = (self._outbox.seq, self._look())
        return self._seen[1]

    def _look(self) -> c.Cycle:
        progress, opens = self.progress(), self._opens()
        views = [replica.view(opens) for replica in self._fleet.up()]
        return c.Cycle(
            replicas=views,
            pool=self._ledger.levels,
            admits=self._gate.tentative(),
            progress=progress,
            routing=self._spec.routing,
            routings=self.routings,
        )

    def _opens(self) -> Callable[[c.ReplicaView], bool]:
        """Whether a replica may be given new groups, as things stand."""
        progress, accepts = self.progress(), self._spec.sync.accepts
        return lambda view: accepts(view, progress)

    def _place_moving(self) -> None:
        """What a move has set free goes where it was bound for, if that still serves its version."""
        arrivals: dict[str, list[TrajectoryState]] = {}
        for name in [name for name in self._ledger.moving if name in self._ledger.waiting]:
            trajectory = self._ledger.trajectories[name]
            assert trajectory.destination is not None
            replica = self._fleet.replicas[trajectory.destination]
            if replica.serves and replica.version == trajectory.version:
                arrivals.setdefault(replica.id, []).append(trajectory)
            elif replica.pulling is None and replica.version != trajectory.version:
                self.unbind(trajectory)
        for name, trajectories in arrivals.items():
            self._route(self._fleet.replicas[name], trajectories, why=lambda _: "it was moved here")

    def _place_stranded(self) -> None:
        """What only a replica of its own version can continue goes before that replica pulls another."""
        if self._ledger.mixes_versions:
            return
        queues = self._ledger.waiting.queues
        stranded: dict[int | None, dict[str, c.TrajectoryView]] = {
            level: exact
            for level in sorted(queues)
            if (exact := {name: view for name, view in queues[level].items() if view.exact})
        }
        if not stranded:
            return
        cycle = dataclasses.replace(self._cycle(), pool=stranded)
        placed = {placement.trajectory for placement in self._place(cycle)}
        for level, waiting in stranded.items():
            if level is not None and any(name not in placed for name in waiting):
                self._pull_old(level, f"trajectories of version {level} are left and nobody serves it")

    def _place_waiting(self) -> None:
        if not self._ledger.pooled:
            self.blocked_cycles = 0
            return
        self.blocked_cycles = 0 if self._place(self._cycle()) else self.blocked_cycles + 1

    def _place(self, cycle: c.Cycle) -> Sequence[c.Placement]:
        """Do what the routing policy says, and return it."""
        if not _may_place(cycle):
            return ()
        ledger, replicas, trajectories = self._ledger, self._fleet.replicas, self._ledger.trajectories
        placements = self._spec.routing.route(cycle)
        routes: dict[str, list[TrajectoryState]] = {}
        singles: Sequence[c.Placement] = placements
        whole: Sequence[tuple[Sequence[str], str]] = ()
        if isinstance(placements, c.Placements):
            singles, whole = placements.singles, placements.groups
        started: list[GroupState] = []
        for placement in singles:
            name = placement.trajectory
            if name not in trajectories:
                started.append(self._start(name, replicas[placement.replica]))
            elif trajectories[name].version is not None:
                self.routings += 1
            routes.setdefault(placement.replica, []).append(trajectories[name])
        for members, chosen in whole:
            routes.setdefault(chosen, []).extend(self._start(members[0], replicas[chosen]).states)
        why = {placement.trajectory: placement for placement in placements} if self._outbox.notes is not None else {}
        for chosen, states in routes.items():
            self._route(replicas[chosen], states, why=lambda id_: _because(why[id_]))
        for group in started:
            ledger.pool_rest(group)
        return placements

    def _start(self, trajectory: str, replica: ReplicaState) -> GroupState:
        """The first trajectory of a group is about to be routed."""
        group = self._ledger.group_of(trajectory)
        assert group is not None
        assert replica.version is not None
        self._gate.start(group.index, replica.version)
        self._ledger.start(group, replica.version)
        self.routings += 1
        return group

    def _route(self, replica: ReplicaState, states: Sequence[TrajectoryState], *, why: Callable[[str], str]) -> None:
        assert replica.version is not None
        if self._ledger.moving:
            for state in states:
                self.unbind(state)
        refs = self._ledger.routed(states, replica.id, replica.version)
        seq = self._outbox.send_to(replica, c.Route, trajectories=tuple(refs))
        evaluations = sum([ref.purpose is c.Purpose.EVAL for ref in refs])
        self._fleet.routed(replica, states, evaluations=evaluations)
        if self._outbox.notes is not None:
            for state in states:
                self._outbox.note((state.id,), functools.partial(_routed, replica.id, state.id, why), seq)

    # ---- evaluations ----------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Evaluations go first, whole, to a replica that is new enough; it keeps its weights until they are answered."""
        if self._ledger.stranded_evaluations:
            self._restart_stranded_evaluations()
        if not self._evaluations.due:
            return
        mixes, opens = self._ledger.mixes_versions, self._opens()
        candidates = sorted((replica for replica in self._fleet.up() if replica.serves), key=lambda r: r.in_flight)
        for replica in candidates:
            if replica.evaluating or not (mixes or replica.view(opens).open):
                continue
            assert replica.version is not None
            trajectories = self._evaluations.start(replica.version)
            if trajectories:
                for trajectory in trajectories:
                    self._ledger.add(trajectory)
                self._route(replica, trajectories, why=lambda _: "an evaluation is due")
        self._pull_for_evaluation()

    def _restart_stranded_evaluations(self) -> None:
        """An evaluation whose replica died goes on where its version is served; where versions mix, it starts anew."""
        for name in list(self._ledger.stranded_evaluations):
            trajectory = self._ledger.trajectories[name]
            if self._ledger.mixes_versions and trajectory.version is not None:
                self._outbox.send(c.Abort, trajectories=(name,))
                self._ledger.restarted(trajectory)
        homes: dict[str, list[TrajectoryState]] = {}
        homeless: dict[int, None] = {}
        serving = [replica for replica in self._fleet.up() if replica.serves]
        for name in self._ledger.stranded_evaluations:
            trajectory = self._ledger.trajectories[name]
            fits = [replica for replica in serving if trajectory.version in (None, replica.version)]
            if fits:
                newest = max(fits, key=lambda replica: (replica.version or 0, replica.evaluating))
                homes.setdefault(newest.id, []).append(trajectory)
            elif trajectory.version is not None:
                homeless[trajectory.version] = None
        for home, trajectories in homes.items():
            self._route(self._fleet.replicas[home], trajectories, why=lambda _: "its evaluation goes on")
        for version in homeless:  # by a replica that has just been given nothing
            self._pull_old(version, f"an evaluation of version {version} is unfinished")

    def _pull_old(self, version: int, why: str) -> None:
        """An idle replica pulls a version again that nobody serves any more, if no replica is about to."""
        up = self._fleet.up()
        if any(version in (replica.version, replica.pulling) for replica in up):
            return
        idle = [replica for replica in up if replica.pulling is None and not replica.in_flight]
        if idle:
            self._pull(idle[0], version, why)

    def _pull_for_evaluation(self) -> None:
        """An evaluation must not wait for a policy that sees no use in new weights."""
        due = [version for version, _ in self._evaluations.due if version <= self._learner.published]
        if not due or not self._ledger.mixes_versions:
            return
        up = self._fleet.up()
        newest = max(((r.version if r.pulling is None else r.pulling) or 0 for r in up), default=0)
        free = [replica for replica in up if replica.serves and not replica.evaluating]
        if newest < min(due) and free:
            least = min(free, key=lambda replica: replica.in_flight)
            self._pull(least, self._learner.published, f"an evaluation of version {min(due)} is due")

    # ---- weights and relocation -----------------------------------------------------------------------------------

    def _synchronise(self) -> None:
        published = self._learner.published
        if published < 0 or not any(r.version != published and r.pulling is None for r in self._fleet.up()):
            return
        cycle = self._cycle()
        for decision in self._spec.sync.pulls(cycle):
            replica = self._fleet.replicas[decision.replica]
            if replica.pulling is None and not replica.moving_out:
                self._pull(replica, published, decision.why)

    def _pull(self, replica: ReplicaState, version: int, why: str) -> None:
        if self.last_cycle_s < replica.pulls_from_s:
            return
        if replica.assigned:
            self.interrupting_pulls += 1
            self._interrupt(replica, tuple(replica.assigned), f"{replica.id} pulls version {version}: {why}")
        replica.pulling = version
        self._outbox.send_to(replica, c.Pull, version=version)

    def _interrupt(self, replica: ReplicaState, names: tuple[str, ...], why: str) -> None:
        seq = self._outbox.send_to(replica, c.Interrupt, trajectories=names)
        self._outbox.note(names, lambda: f"interrupted on {replica.id}: {why}", seq)

    def _relocate(self, now: float, *, stepped: bool) -> None:
        policy = self._spec.relocation
        if not policy.due(now, self.last_plan_s, stepped):
            return
        cycle = self._cycle()
        eligible = [view for view in cycle.replicas if view.version is not None and not view.pulling]
        eligible = [view for view in eligible if not self._fleet.replicas[view.replica].incoming]
        for decision in policy.plan(c.Cycle(eligible, cycle.pool, cycle.admits, cycle.progress, cycle.routing)):
            if isinstance(decision, c.Move):
                self._move(decision)
            else:
                self.evictions += len(decision.trajectories)
                self._interrupt(self._fleet.replicas[decision.replica], decision.trajectories, decision.why)
        if not stepped:
            self.last_plan_s = now
            self._fleet.sampled()

    def _move(self, move: c.Move) -> None:
        source, destination = self._fleet.replicas[move.source], self._fleet.replicas[move.destination]
        names = tuple(source.assigned)
        for name in names:
            self._ledger.bind(self._ledger.trajectories[name], destination.id)
        destination.incoming += len(names)
        source.moving_out = True
        self.moves += 1
        self._interrupt(source, names, f"repacked onto {destination.id}")

    def unbind(self, trajectory: TrajectoryState) -> None:
        """A trajectory no longer moves to its destination."""
        if trajectory.destination is not None:
            self._fleet.replicas[trajectory.destination].incoming -= 1
            self._ledger.bind(trajectory, None)


def _may_place(cycle: c.Cycle) -> bool:
    """Whether a routing policy has any choice: a quick no while every replica is busy, or none is open."""
    serving = [view for view in cycle.replicas if view.version is not None and not view.pulling]
    return any(level is not None or any(view.open for view in serving) for level in cycle.pool) and bool(serving)


def _routed(replica: str, trajectory: str, why: Callable[[str], str]) -> str:
    return f"routed to {replica}: {why(trajectory)}"


def _because(placement: c.Placement) -> str:
    if placement.gain is None:
        return "the routing policy chose it"
    return f"it gains {placement.gain:.4g} tokens/s there, at least {placement.least or 0.0:.4g} were asked for"
