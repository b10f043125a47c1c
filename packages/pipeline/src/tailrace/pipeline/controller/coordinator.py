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
from collections.abc import Callable, Sequence, Set

from tailrace import contracts as c
from tailrace.pipeline.controller.backlog import first_of, in_turn, room
from tailrace.pipeline.controller.discards import Discards
from tailrace.pipeline.controller.evaluating import Evaluating
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.fleet import Replicas, ReplicaState
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.members import Members
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.controller.plan_checks import pulls, relocations
from tailrace.pipeline.controller.plugin_faults import answered, listed
from tailrace.pipeline.controller.refill import Refill
from tailrace.pipeline.controller.states import GroupState, TrajectoryState
from tailrace.pipeline.controller.trainer_state import TrainerState
from tailrace.pipeline.spec import PipelineSpec
from tailrace.repack import ThroughputModel

_ONCE = "a trajectory of the pool, placed once"
_MOVE, _EVICTION, _FOR_PULL, _EMPTIED = "move", "eviction", "pull", "emptied"  # what an `Interrupt` is for
_LOAD = frozenset({c.Snapshot})
_ANSWERS = frozenset(
    {c.Finished, c.TurnEnded, c.Turned, c.CallFailed, c.Refused, c.Interrupted, c.Scored, c.ScoringFailed}
)
_PROGRESS = _ANSWERS | {
    c.Durable,
    c.Silent,
    c.Struck,
    c.Accumulated,
    c.Activity,
    c.Predicted,
    c.PredictionFailed,
}  # a snapshot follows, or nothing does


class Coordinator:
    """Decides what replicas do. Other objects own the state that it decides on.

    Args:
        gate: the admission gate.
        refill: opens groups.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        ledger: Ledger,
        fleet: Replicas,
        members: Members,
        trainer: TrainerState,
        evaluations: Evaluations,
        gate: c.AdmissionGate,
        refill: Refill,
        discards: Discards,
        outbox: Outbox,
    ) -> None:
        self.moves = 0
        self.evictions = 0
        self.interrupting_pulls = 0
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
        self._spec, self._ledger, self._fleet, self._trainer = spec, ledger, fleet, trainer
        self._members, self._gate, self._outbox = members, gate, outbox
        self._refill = refill
        self._evaluating = Evaluating(evaluations, ledger, fleet, trainer, discards, self.route, self._pull)

    def learn(self, model: ThroughputModel) -> PipelineSpec:
        """Plan with these costs of a decoding step from now on. Returns the pipeline as it is now."""
        costs, routing, relocation = dataclasses.astuple(model), self._spec.routing, self._spec.relocation
        if isinstance(routing, c.LearnsCosts):
            self._spec = dataclasses.replace(self._spec, routing=routing.with_costs(*costs))
        if isinstance(relocation, c.LearnsCosts):
            self._spec = dataclasses.replace(self._spec, relocation=relocation.with_costs(*costs))
        return self._spec

    def progress(self) -> c.Progress:
        """How far the run is, for policies."""
        trainer, ledger = self._trainer, self._ledger
        return c.Progress(
            version=trainer.version,
            published=trainer.published,
            admitted=ledger.counts.admitted,
            generating=ledger.generating,
            buffered=len(ledger.buffered),
            consumed=trainer.step * self._spec.batch_groups + len(trainer.accumulated),
            dropped=ledger.counts.filtered + ledger.counts.failed,
            batch_groups=self._spec.batch_groups,
            last_version=trainer.steps,
            behind=sum([replica.version != trainer.published for replica in self._fleet.up()]),
        )

    def due(self, kinds: Set[type], now: float) -> bool:
        """Whether events of these kinds require a cycle."""
        others = kinds - _PROGRESS
        if bool(others - _LOAD) or (bool(others) and now - self.last_cycle_s >= self._spec.cycle_s):
            self._idly = 0
            return True
        return self.backlog

    def run(self, now: float) -> None:
        """Run one cycle.

        Args:
            now: seconds on the run's clock.
        """
        self.last_cycle_s, self.turn = now, self.turn + self._passed
        self.cycles += 1
        self._refill.run(self.progress)
        self._seen = None
        self._place_moving()
        self._evaluating.place(self._opens())
        self._place_stranded()
        self._synchronise()
        self._relocate(now)
        self._place_waiting()

    # ---- the pool -------------------------------------------------------------------------------------------------

    def _cycle(self) -> c.Cycle:
        """The input of policies now. It is built anew only after a command."""
        if self._seen is None or self._seen[0] != self._outbox.seq:
            self._seen = (self._outbox.seq, self._look())
        return self._seen[1]

    def views(self) -> list[c.ReplicaView]:
        """The replicas that are up, as policies see them."""
        opens = self._opens()
        return [replica.view(opens) for replica in self._fleet.up()]

    def _look(self) -> c.Cycle:
        progress = self.progress()
        views, pool = self._part(self.views())
        return c.Cycle(
            replicas=views,
            pool=pool,
            admits=self._gate.tentative(),
            progress=progress,
            routing=self._spec.routing,
            routings=self.routings,
            turn=self.cycles,
            recall=self._ledger.predictions.record.recall,
            lengths=self._ledger.predictions.record.measured,
        )

    def _part(self, views: list[c.ReplicaView]) -> tuple[list[c.ReplicaView], c.Pool]:
        """The replicas and the pool; a part of both if more could be routed at once than one decision may."""
        most, pool = self._spec.cycle_trajectories, self._ledger.levels
        older = any(level is not None for level in pool)
        self.backlog = self._ledger.pooled > most and sum([room(view) for view in views if older or view.open]) > most
        if not self.backlog:
            self._passed = 0
            return views, pool
        size, self._passed = in_turn(views, most, self.turn)
        return views, first_of(pool, size)

    def _opens(self) -> Callable[[c.ReplicaView], bool]:
        """A function that says whether a replica may be given new groups now.

        One that a repack has released gets none until it serves the newest weights that there are or are about to be.
        """
        progress, accepts = self.progress(), self._spec.sync.accepts
        newest, replicas = self._trainer.awaited, self._fleet.replicas
        return lambda view: accepts(view, progress) and not replicas[view.replica].waits_for(newest)

    def _place_moving(self) -> None:
        """Route interrupted trajectories of a move to their destination, if it still serves their version."""
        arrivals: dict[tuple[str, str], list[TrajectoryState]] = {}
        for name, source in list(self._ledger.moving.items()):
            if name not in self._ledger.waiting:
                continue
            trajectory = self._ledger.trajectories[name]
            assert trajectory.destination is not None
            replica = self._fleet.replicas[trajectory.destination]
            if replica.serves and replica.version == trajectory.version:
                arrivals.setdefault((replica.id, source), []).append(trajectory)
            elif replica.lent or (replica.pulling is None and replica.version != trajectory.version):
                self.unbind(trajectory)
        for (name, source), trajectories in arrivals.items():
            self.route(self._fleet.replicas[name], trajectories, c.Reason(c.Why.MOVED, source))

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
                self._evaluating.pull_old(level, c.Reason(c.Why.STRANDED, numbers={"version": level}))

    def _place_waiting(self) -> None:
        if not self._ledger.pooled:
            self.blocked_cycles, self.backlog = 0, False
            return
        placed = bool(self._place(self._cycle()))
        self.blocked_cycles = 0 if placed else self.blocked_cycles + 1
        self._idly = 0 if placed else self._idly + self._passed
        self.backlog = self.backlog and self._idly < len(self._fleet.replicas)

    def _place(self, cycle: c.Cycle) -> Sequence[c.Placement]:
        """Carry out the routing policy's placements, and return them."""
        if not _may_place(cycle):
            return ()
        ledger, replicas, trajectories = self._ledger, self._fleet.replicas, self._ledger.trajectories
        routing = self._spec.routing
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
            if placement.reason is not c.CHOSEN:
                reasons.setdefault(placement.replica, []).append(placement.reason)
        for members, chosen in whole:
            group = self._start(members[0], self._may_take(chosen, members), members)
            routes.setdefault(chosen, []).extend(group.states)
        for chosen, states in routes.items():
            why = reasons.get(chosen, ())
            self._send(replicas[chosen], states, tuple(why) if len(why) == len(states) else (c.CHOSEN,))
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
        return answered("routing", self._spec.routing, "route", answer, expected)

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

    def route(self, replica: ReplicaState, states: Sequence[TrajectoryState], reason: c.Reason) -> None:
        self._send(replica, states, (reason,))

    def _send(self, replica: ReplicaState, states: Sequence[TrajectoryState], reasons: tuple[c.Reason, ...]) -> None:
        assert replica.version is not None
        if self._ledger.moving:
            for state in states:
                self.unbind(state)
        refs = self._ledger.routed(states, replica.id, replica.version)
        self._outbox.send_to(replica, c.Route, trajectories=tuple(refs), reasons=reasons)
        evaluations = sum([ref.purpose is c.Purpose.EVAL for ref in refs])
        self._fleet.routed(replica, states, evaluations=evaluations)

    # ---- weights and relocation -----------------------------------------------------------------------------------

    def _synchronise(self) -> None:
        published = self._trainer.published
        if published < 0 or not any(r.version != published and r.pulling is None for r in self._fleet.up()):
            return
        for decision in pulls(self._spec.sync, self._cycle()):
            self._pull(self._fleet.replicas[decision.replica], published, decision.reason)
        self._pull_released(published)

    def _pull_released(self, published: int) -> None:
        """Have replicas that a repack has emptied pull where the sync policy would give them groups at their old version."""
        for replica in self._fleet.up():
            if (
                replica.waits_for(published)
                and replica.serves
                and not replica.in_flight
                and self._spec.sync.accepts(replica.view(lambda _: True), self.progress())
            ):
                self._pull(replica, published, c.Reason(c.Why.BEHIND, numbers={"version": published}))

    def _pull(self, replica: ReplicaState, version: int, reason: c.Reason) -> None:
        sources = self._members.sources(replica.id)
        if self.last_cycle_s < replica.pulls_from_s or not sources:
            return  # another cycle runs when a relay comes up
        if replica.assigned:
            pulling = c.Reason(c.Why.PULLING, numbers={"version": version})
            self._interrupt(replica, tuple(replica.assigned), pulling, _FOR_PULL)
        replica.pulling = version
        self._outbox.send_to(replica, c.Pull, version=version, sources=sources, reason=reason)

    def _interrupt(self, replica: ReplicaState, names: tuple[str, ...], reason: c.Reason, what: str) -> None:
        if replica.fresh:  # a snapshot came behind every answer
            replica.asked.clear()
        replica.asked[self._outbox.send_to(replica, c.Interrupt, trajectories=names, reason=reason)] = what

    def interrupted(self, event: c.Interrupted) -> None:
        """Count what an interruption took from its replica: a trajectory may finish before it is stopped."""
        asked, seq = self._fleet.replicas[event.replica].asked, event.answers
        if seq is None or seq not in asked:
            return
        if asked[seq] == _EVICTION:
            self.evictions += 1
            return
        what = asked.pop(seq)
        self.moves += what == _MOVE
        self.interrupting_pulls += what == _FOR_PULL

    def empty(self, replica: ReplicaState, why: c.Why) -> None:
        """Empty a replica that loses its devices: its trajectories go back to the pool with their tokens."""
        replica.hands_over(None)
        if replica.assigned:
            self._interrupt(replica, tuple(replica.assigned), c.Reason(why), _EMPTIED)

    def _relocate(self, now: float) -> None:
        """Relocate if it is time, and right after an update: once the weights can be pulled that the released then get."""
        policy, published = self._spec.relocation, self._trainer.published
        updated, self._published = published > self._published, published
        if not policy.due(now, self.last_plan_s, updated):
            return
        cycle = self._cycle()
        eligible = [view for view in cycle.replicas if view.version is not None and not view.pulling]
        eligible = [view for view in eligible if not self._fleet.replicas[view.replica].incoming]
        view = c.Cycle(eligible, cycle.pool, cycle.admits, cycle.progress, cycle.routing)
        for decision in relocations(policy, view):
            if isinstance(decision, c.Move):
                self._move(decision)
                continue
            names = self._moved_on(decision.trajectories)
            if names:
                self._interrupt(self._fleet.replicas[decision.replica], names, decision.reason, _EVICTION)
        if not updated:
            self.last_plan_s = now
            self._fleet.sampled()

    def _moved_on(self, names: Sequence[str]) -> tuple[str, ...]:
        """The trajectories that made a token since they were last relocated. Others might be prefilled again and again."""
        states = [self._ledger.trajectories[name] for name in names]
        found = [state for state in states if state.relocated_at != state.tokens]
        for state in found:
            state.relocated_at = state.tokens
        return tuple([state.id for state in found])

    def _move(self, move: c.Move) -> None:
        source, destination = self._fleet.replicas[move.source], self._fleet.replicas[move.destination]
        names = tuple(source.assigned)
        for name in names:
            self._ledger.bind(self._ledger.trajectories[name], destination.id)
        destination.incoming += len(names)
        source.hands_over(destination)
        if names:
            source.moving_out = True
            self._interrupt(source, names, c.Reason(c.Why.MOVED, destination.id), _MOVE)
        else:
            source.released = True

    def unbind(self, trajectory: TrajectoryState) -> None:
        """Cancel a trajectory's move to its destination."""
        if trajectory.destination is not None:
            self._fleet.replicas[trajectory.destination].incoming -= 1
            self._ledger.bind(trajectory, None)


def _may_place(cycle: c.Cycle) -> bool:
    """Whether a routing policy could place anything. A fast no if every replica is busy or none is open."""
    serving = [view for view in cycle.replicas if view.version is not None and not view.pulling]
    return any(level is not None or any(view.open for view in serving) for level in cycle.pool) and bool(serving)
