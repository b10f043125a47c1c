"""The rollout coordinator: the snapshot-command cycle (StaleFlow, Algorithm 1) over the pool and the fleet.

    refill ──► pool ──► what moves, evaluations ──► sync ──► relocation ──► routing ──► Route
                ▲                                     │           │
                └──────────── Interrupted ◄───────────┴───────────┘

The paper issues Route commands that wait for an interruption or a pull. This coordinator instead decides again when that is
done: a trajectory enters the pool only once the store has its tokens, and a replica gets work only while it serves a version.
So dependent commands go out in order, and commands to different replicas are carried out in parallel.
A cycle runs after every event that may change a decision. Changes of load alone, which every replica reports several times a
second, lead to at most one cycle every `cycle_s` seconds.
A slow replica does not hold up the others: load is validated for each replica by itself, and policies that plan with load
ignore replicas whose last snapshot does not show every command yet.
One cycle looks at a limited number of trajectories of the pool. The rest follows in the next cycle, at the next tick at the
latest. So a large backlog does not hold up anything else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence, Set

from tailrace import contracts as c
from tailrace.controller.fleet import EVICTION, FOR_PULL, MOVE, ReplicaState
from tailrace.controller.plugin_faults import answered, listed, pulls, relocations
from tailrace.controller.pool import first_of, in_turn, room
from tailrace.controller.refill import Refill
from tailrace.controller.state import State
from tailrace.controller.trajectories import GroupState, TrajectoryState
from tailrace.controller.weight_sources import Sources, sources

_ONCE = "a trajectory of the pool, placed once"
_LOAD = frozenset({c.Snapshot})
_ANSWERS = frozenset(
    {c.Finished, c.TurnEnded, c.Turned, c.CallFailed, c.Refused, c.Interrupted, c.Scored, c.ScoringFailed}
)
_PROGRESS = _ANSWERS | {
    c.Durable,
    c.Saving,
    c.Silent,
    c.Struck,
    c.Accumulated,
    c.Lent,
    c.Offloaded,
    c.Activity,
    c.Predicted,
    c.PredictionFailed,
}  # a snapshot follows, or nothing does


class Coordinator:
    """Decides what replicas do. Other objects own the state that it decides on."""

    def __init__(self, state: State, refill: Refill) -> None:
        self.routings = 0
        self.blocked_cycles = 0
        self.last_plan_s = 0.0
        self.last_cycle_s = -math.inf
        self.cycles = 0
        self.backlog = False
        self.turn = 0  # of the replicas, in a backlog
        self._passed = self._idly = (
            0  # those that had it in this cycle, and those since the last one that took anything
        )
        self._published = -1  # the newest version that replicas could pull when relocation was last asked
        self._seen: tuple[int, c.Cycle] | None = None
        self._held = False  # whether groups wait to start together
        self._state, self._refill = state, refill
        self._ledger, self._fleet, self._trainer = state.ledger, state.fleet, state.trainer
        self._members, self._gate, self._outbox = state.members, state.gate, state.outbox
        self._evaluations, self._discards = state.evaluations, state.discards

    def due(self, kinds: Set[type]) -> bool:
        """Whether events of these kinds require a cycle."""
        others = kinds - _PROGRESS
        if bool(others - _LOAD) or (bool(others) and self._state.now - self.last_cycle_s >= self._state.spec.cycle_s):
            self._idly = 0
            return True
        return self.backlog or (self._held and self._starts_together())

    def run(self) -> None:
        """Run one cycle."""
        self.last_cycle_s, self.turn = self._state.now, self.turn + self._passed
        self.cycles += 1
        self._refill.run()
        self._seen = None
        self._give_sources()
        self._place_moving()
        self._place_evaluations()
        self._place_stranded()
        self._synchronise()
        self._relocate()
        self._place_waiting()

    # ---- the pool -------------------------------------------------------------------------------------------------

    def _cycle(self) -> c.Cycle:
        """The input of policies now. It is built anew only after a command."""
        if self._seen is None or self._seen[0] != self._outbox.seq:
            self._seen = (self._outbox.seq, self._look())
        return self._seen[1]

    def _look(self) -> c.Cycle:
        progress = self._state.progress()
        views, pool = self._part(self._state.views())
        return c.Cycle(
            replicas=views,
            pool=pool,
            admits=self._gate.tentative(),
            progress=progress,
            routing=self._state.spec.routing,
            routings=self.routings,
            turn=self.cycles,
            recall=self._ledger.predictions.record.recall,
            lengths=self._ledger.predictions.record.measured,
            prefixes=self._state.prefixes if self._state.sees_prefixes else c.no_prefixes,
        )

    def _part(self, views: list[c.ReplicaView]) -> tuple[list[c.ReplicaView], c.Pool]:
        """The replicas and the pool; a part of both if more could be routed at once than one decision may."""
        most, pool = self._state.spec.cycle_trajectories, self._ledger.levels
        older = any(level is not None for level in pool)
        self.backlog = self._ledger.pooled > most and sum([room(view) for view in views if older or view.open]) > most
        if not self.backlog:
            self._passed = 0
            return views, pool
        size, self._passed = in_turn(views, most, self.turn)
        return views, first_of(pool, size)

    def _place_moving(self) -> None:
        """Route interrupted trajectories of a move to their destination, if it still serves the version that they ran under."""
        arrivals: dict[tuple[str, str], list[TrajectoryState]] = {}
        for name, source in list(self._ledger.moving.items()):
            if name not in self._ledger.waiting:
                continue
            trajectory = self._ledger.trajectories[name]
            assert trajectory.destination is not None
            replica = self._fleet.replicas[trajectory.destination]
            if replica.serves and replica.version == trajectory.under:
                arrivals.setdefault((replica.id, source), []).append(trajectory)
            elif replica.lent or (replica.pulling is None and replica.version != trajectory.under):
                self._state.unbind(trajectory)
        for (name, source), trajectories in arrivals.items():
            self._state.route(self._fleet.replicas[name], trajectories, c.Reason(c.Why.MOVED, source))

    def _place_stranded(self) -> None:
        """Route trajectories that need their own version, before a replica of that version pulls another."""
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
                self._pull_old(level, c.Reason(c.Why.STRANDED, numbers={"version": level}))

    def _place_waiting(self) -> None:
        if not self._ledger.pooled:
            self.blocked_cycles, self.backlog, self._held = 0, False, False
            return
        cycle = self._cycle()
        self._held = self._state.spec.deterministic and not self._starts_together()
        if self._held:
            started: c.Pool = {level: queue for level, queue in cycle.pool.items() if level is not None}
            cycle = dataclasses.replace(cycle, pool=started)
        placed = bool(self._place(cycle))
        self.blocked_cycles = 0 if placed else self.blocked_cycles + 1
        self._idly = 0 if placed else self._idly + self._passed
        self.backlog = self.backlog and self._idly < len(self._fleet.replicas)

    def _starts_together(self) -> bool:
        """Whether groups may start where they only do so together, with nothing beside them."""
        newest, evaluations = self._trainer.published, self._evaluations
        gone = (c.Health.DOWN, c.Health.STOPPING)
        there = [replica for replica in self._fleet.replicas.values() if replica.member.health not in gone]
        ready = all(replica.serves and replica.version == newest for replica in there)
        return ready and not evaluations.running and not any(version <= newest for version, _ in evaluations.due)

    def _place(self, cycle: c.Cycle) -> Sequence[c.Placement]:
        """Carry out the routing policy's placements, and return them."""
        if not _may_place(cycle):
            return ()
        ledger, replicas, trajectories = self._ledger, self._fleet.replicas, self._ledger.trajectories
        routing = self._state.spec.routing
        placements = routing.route(cycle)
        routes: dict[str, list[TrajectoryState]] = {}
        reasons: dict[str, list[c.Reason]] = {}
        singles: Sequence[c.Placement] = placements
        whole: Sequence[tuple[Sequence[str], str]] = ()
        if isinstance(placements, c.Placements):
            singles, whole = placements.singles, placements.groups
        listed("routing", routing, "route", singles, c.Placement)
        started: list[GroupState] = []
        placed: set[str] = set()
        fresh: set[str] = set()
        for placement in singles:
            name, replica = placement.trajectory, self._may_take(placement.replica, placement)
            state = trajectories.get(name)
            if state is None:
                started.append(self._start(name, replica, placement))
                fresh.update(started[-1].members)
            elif name in placed or not (name in fresh or name in ledger.waiting):
                raise self._forbidden(placement, _ONCE)
            else:
                self._check_version(state, replica, placement)
                self.routings += state.version is not None
            placed.add(name)
            routes.setdefault(placement.replica, []).append(trajectories[name])
            reasons.setdefault(placement.replica, []).append(placement.reason)
        for members, chosen in whole:
            group = self._start(members[0], self._may_take(chosen, members), members)
            routes.setdefault(chosen, []).extend(group.states)
            reasons.setdefault(chosen, []).extend([c.CHOSEN] * len(group.states))
        for chosen, states in routes.items():
            why = reasons[chosen]
            self._state.route(replicas[chosen], states, *(why if why.count(c.CHOSEN) < len(why) else why[:1]))
        for group in started:
            ledger.pool_rest(group)
        return placements

    def _may_take(self, chosen: str, placement: object) -> ReplicaState:
        """The replica that a policy named.

        Raises:
            PluginAnswerError: the replica cannot be given work.
        """
        replica = self._fleet.replicas.get(chosen)
        if replica is None or not replica.serves:
            raise self._forbidden(placement, "a replica that is up, serves a version and is not pulling")
        return replica

    def _check_version(self, state: TrajectoryState, replica: ReplicaState, placement: object) -> None:
        """Check that a trajectory resumes under the version of its tokens or, if versions mix, one as new as its group's.

        Raises:
            PluginAnswerError: the replica serves another version.
        """
        assert replica.version is not None
        oldest = self._ledger.groups[state.group].version
        if self._ledger.exact(state) and state.version != replica.version:
            raise self._forbidden(placement, f"a replica that serves version {state.version}")
        if oldest is not None and replica.version < oldest:
            raise self._forbidden(placement, f"a replica that serves version {oldest} or a newer one")

    def _forbidden(self, answer: object, expected: str) -> Exception:
        return answered("routing", self._state.spec.routing, "route", answer, expected)

    def _start(self, trajectory: str, replica: ReplicaState, placement: object) -> GroupState:
        """Start a group, whose first trajectory is about to be routed."""

        group = self._ledger.waits_with(trajectory)
        if group is None:
            raise self._forbidden(placement, _ONCE)
        assert replica.version is not None
        try:
            self._gate.start(group.index, replica.version)
        except c.TailraceError as error:
            raise self._forbidden(placement, f"a version at which admission lets a group start: {error}") from error
        self._ledger.start(group, replica.version)
        self.routings += 1
        return group

    # ---- evaluations ----------------------------------------------------------------------------------------------

    def _place_evaluations(self) -> None:
        """Route due evaluations, before anything else and each whole, to a replica that is new enough. It keeps its weights."""
        if self._ledger.stranded_evaluations:
            self._place_stranded_evaluations()
        if not self._evaluations.due:
            return
        mixes, opens = self._ledger.mixes_versions, self._state.opens()
        candidates = sorted((replica for replica in self._fleet.up() if replica.serves), key=lambda r: r.in_flight)
        for replica in candidates:
            if replica.evaluating or not (mixes or replica.view(opens).open):
                continue
            assert replica.version is not None
            trajectories = self._evaluations.start(replica.version)
            if trajectories:
                for trajectory in trajectories:
                    self._ledger.add(trajectory)
                self._state.route(replica, trajectories, _evaluates(replica.version))
        self._pull_for_evaluation()

    def _pull_old(self, version: int, reason: c.Reason) -> None:
        """Have an idle replica pull an old version that no replica serves, unless one is about to."""
        up = self._fleet.up()
        if any(version in (replica.version, replica.pulling) for replica in up):
            return
        idle = [replica for replica in up if replica.pulling is None and not replica.in_flight]
        if idle:
            self._pull(idle[0], version, reason, old=True)

    def _place_stranded_evaluations(self) -> None:
        """Resume evaluations whose replica died on a replica of their version; if versions mix, start them again."""
        ledger = self._ledger
        stranded = [ledger.trajectories[name] for name in ledger.stranded_evaluations]
        if ledger.mixes_versions:
            for state in stranded:
                if state.version is not None:
                    self._discards.begin_anew([state], c.Reason(c.Why.EVALUATION, numbers={"version": state.version}))
        homes: dict[str, list[TrajectoryState]] = {}
        homeless: dict[int, None] = {}
        serving = [replica for replica in self._fleet.up() if replica.serves]
        for name in ledger.stranded_evaluations:
            trajectory = ledger.trajectories[name]
            fits = [replica for replica in serving if trajectory.version in (None, replica.version)]
            if fits:
                newest = max(fits, key=lambda replica: (replica.version or 0, replica.evaluating))
                homes.setdefault(newest.id, []).append(trajectory)
            elif trajectory.version is not None:
                homeless[trajectory.version] = None
        for home, trajectories in homes.items():
            replica = self._fleet.replicas[home]
            self._state.route(replica, trajectories, _evaluates(replica.version or 0))
        for version in homeless:  # no replica serves it
            self._pull_old(version, _evaluates(version))

    def _pull_for_evaluation(self) -> None:
        """Have a replica pull for a due evaluation, since the sync policy may see no reason to."""
        published = self._trainer.published
        due = [version for version, _ in self._evaluations.due if version <= published]
        if not due or not self._ledger.mixes_versions:
            return
        up = self._fleet.up()
        newest = max(((r.version if r.pulling is None else r.pulling) or 0 for r in up), default=0)
        free = [replica for replica in up if replica.serves and not replica.evaluating]
        if newest < min(due) and free:
            self._pull(min(free, key=lambda replica: replica.in_flight), published, _evaluates(min(due)))

    # ---- weights and relocation -----------------------------------------------------------------------------------

    def _synchronise(self) -> None:
        published = self._trainer.published
        if published < 0 or not any(r.version != published and r.pulling is None for r in self._fleet.up()):
            return
        for decision in pulls(self._state.spec.sync, self._cycle()):
            self._pull(self._fleet.replicas[decision.replica], published, decision.reason)
        self._pull_released(published)

    def _pull_released(self, published: int) -> None:
        """Have replicas that a repack has emptied pull where the sync policy would give them groups at their old version."""
        for replica in self._fleet.up():
            if (
                replica.waits_for(published)
                and replica.serves
                and not replica.in_flight
                and self._state.spec.sync.accepts(replica.view(lambda _: True), self._state.progress())
            ):
                self._pull(replica, published, c.Reason(c.Why.BEHIND, numbers={"version": published}))

    def _pull(self, replica: ReplicaState, version: int, reason: c.Reason, *, old: bool = False) -> None:
        found = self._sources(replica, version)
        if self.last_cycle_s < replica.pulls_from_s or not found:
            return  # another cycle runs when a relay comes up
        replica.pulls_old = old
        self._pull_from(replica, version, found, reason)

    def _give_sources(self) -> None:
        """Begin pulls that wait for a source, of what is newest now: nothing was sent while they waited."""
        for replica in self._fleet.up():
            version, reason = replica.pulling, replica.pull_waits
            if version is None or reason is None:
                continue
            if not replica.pulls_old and version != self._trainer.published:
                version = self._trainer.published
                if reason.why in (c.Why.BEHIND, c.Why.NEWER):
                    reason = dataclasses.replace(reason, numbers={**reason.numbers, "version": version})
            self._pull_from(replica, version, self._sources(replica, version), reason)

    def _pull_from(self, replica: ReplicaState, version: int, found: Sources, reason: c.Reason) -> None:
        """Tell a replica to pull, or leave it waiting: a source is free again once its puller has pulled, failed or died."""
        replica.pulling, self._seen = version, None  # it may be told of it later, and is out of this cycle all the same
        replica.pull_waits = None if found.free else reason
        if found.free:
            if names := replica.without_room(self._state.spec.replica_versions - 1):
                pulling = c.Reason(c.Why.PULLING, numbers={"version": version})
                self._state.interrupt(replica, names, pulling, FOR_PULL)
            replica.source = found.free[0]
            self._outbox.send_to(replica, c.Pull, version=version, sources=(*found.free, *found.busy), reason=reason)

    def _sources(self, replica: ReplicaState, version: int) -> Sources:
        return sources(self._members, self._fleet, replica, version, peers=self._state.spec.peers)

    def _relocate(self) -> None:
        """Relocate if it is time, and right after an update: once the weights can be pulled that the released then get."""
        policy, published, now = self._state.spec.relocation, self._trainer.published, self._state.now
        updated, self._published = published > self._published, published
        periodic = policy.due(now, self.last_plan_s, False)
        if not (periodic or (updated and policy.due(now, self.last_plan_s, True))):
            return
        cycle = self._cycle()
        eligible = [view for view in cycle.replicas if view.version is not None and not view.pulling]
        eligible = [view for view in eligible if not self._fleet.replicas[view.replica].incoming]
        view = c.Cycle(eligible, cycle.pool, cycle.admits, cycle.progress, cycle.routing)
        for decision in relocations(policy, view):
            if isinstance(decision, c.Move):
                self._move(decision)
                continue
            names = self._ledger.relocated(decision.trajectories)
            if names:
                self._state.interrupt(self._fleet.replicas[decision.replica], names, decision.reason, EVICTION)
        if periodic:
            self.last_plan_s = now
            self._fleet.sampled()

    def _move(self, move: c.Move) -> None:
        source, destination = self._fleet.replicas[move.source], self._fleet.replicas[move.destination]
        names = tuple(source.assigned)
        for name in names:
            self._ledger.bind(self._ledger.trajectories[name], destination.id)
        destination.incoming += len(names)
        source.hands_over(destination)
        if names:
            source.moving_out = True
            self._state.interrupt(source, names, c.Reason(c.Why.MOVED, destination.id), MOVE)
        else:
            source.released = True


def _may_place(cycle: c.Cycle) -> bool:
    """Whether a routing policy could place anything. A fast no if every replica is busy or none is open."""
    serving = [view for view in cycle.replicas if view.version is not None and not view.pulling]
    return any(level is not None or any(view.open for view in serving) for level in cycle.pool) and bool(serving)


def _evaluates(version: int) -> c.Reason:
    return c.Reason(c.Why.EVALUATION, numbers={"version": version})
