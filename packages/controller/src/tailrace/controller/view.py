"""A read-only view of a run for observers, with plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from tailrace import contracts as c
from tailrace.controller.batches import Batches
from tailrace.controller.coordinator import Coordinator
from tailrace.controller.evaluations import EvaluationResult
from tailrace.controller.length_requests import LengthRequests
from tailrace.controller.lengths import Outcome
from tailrace.controller.members import ENVIRONMENT, LEAVING, RELAY, REPLICA, TRAINER
from tailrace.controller.recovery.failures import Failures
from tailrace.controller.refill import Refill
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.state import Brought, State
from tailrace.controller.trajectories import Counts, GroupPhase, Phase, TrajectoryState
from tailrace.controller.why_idle import replica_waits, trainer_waits
from tailrace.repack import OnlineFit


class _Parts(Protocol):
    owned: State
    coordinator: Coordinator
    predictions: LengthRequests
    failures: Failures
    refill: Refill
    batches: Batches
    costs: OnlineFit | None
    finished: bool


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica at a moment.

    Args:
        doing: what it does, in words.
        trajectories: number of trajectories in flight.
        in_environment: those of them that environments answer.
        kv: share of the KV cache in use, 0 to 1.
    """

    id: str
    doing: str
    version: int | None
    trajectories: int
    kv: float
    in_environment: int = 0


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """A member of the environment role at a moment.

    Args:
        doing: what it does, in words.
        sessions: sessions that it has open.
        answering: those of them whose last turn it is to answer.
    """

    id: str
    doing: str
    sessions: int
    answering: int


@dataclass(frozen=True, slots=True)
class BatchMember:
    """A trajectory of a batch.

    Args:
        version: its oldest version.
        completed_at: the trainer's version at its completion.
        tokens: its tokens without observations.
        truncated: whether a limit ended it.
    """

    version: int
    completed_at: int
    tokens: int
    prompt: int = 0
    reward: float | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member at a moment.

    Args:
        version: of a replica, the weights that it serves.
        pulling: of a replica, the version that it pulls.
        held: of a replica, trajectories that were routed to it and have not come back.
        evaluating: those of them that answer an evaluation.
        mode: how these are decoded.
        releasing: whether it is told to let go of what it holds, for good.
        devices: that a replica spans; 0 if it is not restarted any more.
        cells: cells of the trainer that a replica's devices are lent to.
    """

    role: str
    id: str
    health: c.Health
    version: int | None = None
    pulling: int | None = None
    held: int = 0
    evaluating: int = 0
    mode: str = ""
    releasing: bool = False
    cells: tuple[int, ...] = ()
    devices: int = 0


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """A trajectory at a moment, whose group has started.

    Args:
        replica: where it runs.
        environment: the member that is to answer its last turn.
        answered: turns that environments have answered.
        finished: whether its last token is there.
        group: what its group is doing; None for one of an evaluation.
        consumed_for: the version that its group is trained on for, or was.
    """

    version: int | None
    replica: str | None
    environment: str | None
    answered: int
    finished: bool
    group: GroupPhase | None
    consumed_for: int


class Whereabouts(StrEnum):
    """Where a training trajectory is that has started and is not trained on."""

    POOL = "pool"
    REPLICA = "replica"
    ENVIRONMENT = "environment"
    SCORER = "scorer"
    GROUP = "group"
    BUFFER = "buffer"
    TRAINER = "trainer"


@dataclass(frozen=True, slots=True)
class HeldTrajectories:
    """Training trajectories that have started, of one place and one version.

    Args:
        where: where they are. In their `GROUP` are those that are scored and wait for the others of it.
        version: the oldest of their tokens; None while they have none.
        trajectories: how many.
        tokens: their response tokens; of those that run, as far as snapshots tell.
    """

    where: Whereabouts
    version: int | None
    trajectories: int
    tokens: int


class RunView:
    """The state of a run, read only.

    Args:
        parts: the controller.
    """

    def __init__(self, parts: _Parts) -> None:
        self._parts, self._state = parts, parts.owned

    @property
    def now(self) -> float:
        """Seconds on the run's clock, at the last instant."""
        return self._state.now

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline."""
        return self._state.spec

    @property
    def brought(self) -> Brought:
        """What the last instant brought beside the state."""
        return self._state.brought

    @property
    def steps(self) -> int:
        """Batches to train on."""
        return self._state.trainer.steps

    @property
    def step(self) -> int:
        """Batches trained on."""
        return self._state.trainer.step

    @property
    def ranker_updates(self) -> int:
        """How often a ranker has learned anew after its first training."""
        return self._parts.predictions.updates

    @property
    def prediction_outcomes(self) -> Sequence[Outcome]:
        """What was predicted of groups that were trained on as they started, and their lengths; empty without a ranker."""
        return self._state.ledger.predictions.record.outcomes()

    @property
    def version(self) -> int:
        """The trainer's version."""
        return self._state.trainer.version

    @property
    def published(self) -> int:
        """The newest version that replicas may pull; -1 before the first."""
        return self._state.trainer.published

    @property
    def published_before_durable(self) -> int:
        """Versions that replicas could pull before their checkpoint was durable."""
        return self._state.trainer.published_before_durable

    @property
    def on_its_way(self) -> int | None:
        """The version that was handed over for publication, and that no replica may pull yet; None if there is none."""
        trainer = self._state.trainer
        return trainer.publishing if trainer.staged and trainer.published < trainer.publishing else None

    @property
    def durable(self) -> int:
        """The newest version whose checkpoint survives a crash; -1 before the first."""
        return self._state.trainer.durable

    @property
    def last_version(self) -> int:
        """The highest version number used so far."""
        return max(self._state.trainer.version, self._state.trainer.publishing)

    @property
    def making(self) -> int | None:
        """The version that the trainer works on; None if it has no batch."""
        return self._state.trainer.making

    @property
    def trainer_up(self) -> bool:
        """Whether the trainer is up."""
        return self._state.trainer.up

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self._parts.finished

    @property
    def failure(self) -> str | None:
        """Why the run failed; None if it did not."""
        return self._state.failure

    @property
    def bound(self) -> int | None:
        """The bound on staleness that admission guarantees; None if it guarantees none."""
        return self._state.gate.bound

    @property
    def mixes_versions(self) -> bool:
        """Whether a trajectory may continue under newer weights."""
        return self._state.ledger.mixes_versions

    @property
    def counts(self) -> Counts:
        """Totals over the run."""
        return self._state.ledger.counts

    @property
    def pooled(self) -> int:
        """Number of trajectories that wait for a replica."""
        return self._state.ledger.pooled

    @property
    def pooled_started(self) -> int:
        """Number of started trajectories that wait for a replica, or for the store to drop their tokens."""
        return self._state.ledger.pooled_started

    @property
    def generating(self) -> int:
        """Number of groups that were admitted and are not complete."""
        return self._state.ledger.generating

    @property
    def started(self) -> int:
        """Number of groups that have started and are not complete."""
        return self._state.ledger.started_groups

    @property
    def most_open(self) -> int:
        """Number of groups that are generated or wait for the trainer at once, at most."""
        spec = self.spec
        gate, batch = spec.admission.gate(spec.batch_groups), spec.batch_groups
        room = (1 + (gate.bound or 0)) * batch if gate.starts_batchwise() else gate.room  # it grows as a batch starts
        limits = [limit for limit in (room, spec.buffer_groups) if limit is not None]
        return min(limits, default=spec.open_batches * batch)

    @property
    def open_groups(self) -> int:
        """Number of groups that were admitted and have not ended."""
        return sum(group.phase is not GroupPhase.TRAINED for group in self._state.ledger.groups.values())

    @property
    def lost_groups(self) -> int:
        """Number of prompts that were admitted and are nowhere to be found; anything but 0 is a fault of Tailrace.

        At the end of a run nothing is open: what has no end then is lost.
        """
        counts = self.counts
        ended = counts.trained + counts.filtered + counts.failed
        return counts.prompts - ended - (0 if self.finished else self.open_groups)

    @property
    def buffered(self) -> int:
        """Number of groups that are complete and not consumed."""
        return len(self._state.ledger.buffered)

    @property
    def staleness_at_consumption(self) -> dict[int, int]:
        """Number of trajectories that were trained on, by staleness."""
        return self._state.trainer.staleness_at_consumption

    @property
    def staleness_at_completion(self) -> dict[int, int]:
        """Number of completed trajectories, by the versions that the trainer was ahead at completion."""
        return dict(self._state.trainer.staleness_at_completion)

    @property
    def evaluations(self) -> Sequence[EvaluationResult]:
        """The finished evaluations."""
        return tuple(self._state.evaluations.results)

    @property
    def evaluations_open(self) -> int:
        """Number of evaluations that are due or running."""
        return len(self._state.evaluations.due) + len(self._state.evaluations.running)

    @property
    def contradictions(self) -> int:
        """Number of snapshots that contradict the controller's state."""
        return self._state.fleet.contradictions

    @property
    def cached_tokens(self) -> int:
        """Tokens that the prefix caches of replicas had, so that they needed no prefill."""
        return sum(replica.cached_tokens for replica in self._state.fleet.replicas.values())

    @property
    def blocked_cycles(self) -> int:
        """Number of cycles in a row that placed nothing although the pool was not empty."""
        return self._parts.coordinator.blocked_cycles

    @property
    def cost_model(self) -> dict[str, Any] | None:
        """The costs of a decoding step that the run fits itself, for policies that plan with them; None if it fits none.

        `source` is ``"fitted"``, or ``"assumed"`` while policies plan with what they assume: no fit is good enough yet. Beside
        it k1 to k4 in seconds, the `samples` of the last fit, its median relative `error` on medians of like steps that were
        left out of it, and the `scatter` of single ones, if there is one.
        """
        costs = self._parts.costs
        if costs is None:
            return None
        fit = costs.last
        if fit is None:
            return {"source": "assumed", "samples": costs.seen}
        source = "fitted" if fit.usable else "assumed"
        errors = {"error": round(fit.error, 4), "scatter": round(fit.scatter, 4)}
        return {"source": source, **asdict(fit.model), "samples": fit.samples, **errors}

    @property
    def moves(self) -> int:
        """Number of replicas of which relocation moved work: where all had finished before, nothing was moved."""
        return self._state.fleet.moves

    @property
    def evictions(self) -> int:
        """Number of trajectories that relocation interrupted before they finished."""
        return self._state.fleet.evictions

    @property
    def interrupting_pulls(self) -> int:
        """Number of pulls that interrupted running work."""
        return self._state.fleet.interrupting_pulls

    def restarts(self, role: str) -> int:
        """Number of restarts of a role's members, of those that are gone for good too. After the driver's death none failed."""
        return self._state.members.restarts.get(role, 0)

    def step_of(self, version: int) -> int:
        """Batches consumed when the trainer made a version."""
        return self._state.trainer.batches.get(version, self.step)

    def made(self, version: int) -> bool:
        """Whether training made a version and did not undo it by a fall-back."""
        return version in self._state.trainer.batches

    def batch(self, version: int) -> Iterator[BatchMember]:
        """The trajectories that were consumed for a version so far."""
        for state in self._state.ledger.batch(version):
            if state.version is not None:
                yield BatchMember(
                    state.version, state.completed_at, state.generated, state.prompt, state.reward, state.truncated
                )

    def waits(self, trajectory: str) -> str | None:
        """What a trajectory does or waits for, in words; None if it is unknown or settled."""
        state = self._state.ledger.get(trajectory)
        if state is None:
            return None
        where = "" if state.replica is None else f" on {state.replica}"
        if state.phase is Phase.IN_ENVIRONMENT:
            called = self._state.sessions.calls.get(trajectory)
            where = " (waits for a session)" if called is None else f" {called[0]}"
        return f"{state.phase}{where}, version {state.version}"

    def trajectory(self, name: str) -> TrajectoryRow | None:
        """A trajectory; None if its group has not started, or it is settled or unknown."""
        state = self._state.ledger.trajectories.get(name)
        if state is None:
            return None
        group = None if state.purpose is c.Purpose.EVAL else self._state.ledger.groups[state.group]
        asked, _ = self._state.sessions.calls.get(name, (None, 0))
        return TrajectoryRow(
            state.version,
            state.replica,
            asked,
            state.answered,
            state.finished,
            None if group is None else group.phase,
            0 if group is None else group.consumed_for,
        )

    def whereabouts(self) -> list[HeldTrajectories]:
        """Where the training trajectories are that have started and are not trained on, oldest version first in each place.

        Groups that have not started are not among them. It looks at every such trajectory.
        """
        fleet, groups = self._state.fleet.replicas, self._state.ledger.groups
        found: dict[tuple[Whereabouts, int | None], list[int]] = {}
        for state in self._state.ledger.trajectories.values():
            if state.purpose is c.Purpose.EVAL or (where := _whereabouts(state, groups[state.group].phase)) is None:
                continue
            tokens = state.tokens
            if where is Whereabouts.REPLICA and (replica := fleet.get(state.replica or "")) is not None:
                tokens += max(0, int(replica.assigned.generated - state.since))
            row = found.setdefault((where, state.version), [0, 0])
            row[0] += 1
            row[1] += tokens
        places = list(Whereabouts)
        order = sorted(found, key=lambda key: (places.index(key[0]), -1 if key[1] is None else key[1]))
        return [HeldTrajectories(*key, *found[key]) for key in order]

    @property
    def unstarted(self) -> int:
        """Number of trajectories whose groups wait in the pool and have not started."""
        return len(self._state.ledger.waiting.unstarted)

    def unsettled(self) -> list[int]:
        """Lengths of the training trajectories that are complete, and whose group is neither trained on nor dropped.

        In tokens, without observations.
        """
        groups = (group for group in self._state.ledger.groups.values() if group.phase is not GroupPhase.TRAINED)
        states = (state for group in groups for state in group.states)
        return [state.generated for state in states if state.finished]

    def held(self, replica: str) -> int:
        """Number of trajectories that were routed to a replica and have not come back."""
        found = self._state.fleet.replicas.get(replica)
        return 0 if found is None else len(found.assigned.states)

    def serves(self, replica: str) -> int | None:
        """The version that a replica serves; None if it has none."""
        found = self._state.fleet.replicas.get(replica)
        return None if found is None else found.version

    def only_trains(self, replica: str) -> bool:
        """Whether a replica holds trajectories, none of which answers an evaluation."""
        found = self._state.fleet.replicas.get(replica)
        return found is not None and bool(found.assigned.states) and not found.evaluating

    @property
    def on_replicas(self) -> int:
        """Number of trajectories that replicas hold."""
        return sum([len(replica.assigned.states) for replica in self._state.fleet.replicas.values()])

    @property
    def generates(self) -> bool:
        """Whether a replica generates, or a trajectory waits for its environment."""
        return self._state.generates

    @property
    def colocated(self) -> bool:
        """Whether the trainer stands on the devices of replicas, and has none of its own."""
        return self.spec.colocated

    @property
    def answering(self) -> int:
        """Number of turns that environments answer."""
        return len(self._state.sessions.calls)

    def members(self) -> Iterator[tuple[str, str]]:
        """Role and id of all members that are not gone for good."""
        yield from self._state.members.states

    def member(self, role: str, id_: str) -> MemberRow | None:
        """A member; None if it is gone for good. One that failed and is not restarted any more is down."""
        state = self._state.members.get(role, id_)
        if state is None:
            given_up = any((row["role"], row["id"]) == (role, id_) for row in self.given_up)
            return MemberRow(role, id_, c.Health.DOWN) if given_up else None
        if role != REPLICA:
            return MemberRow(role, id_, state.health)
        replica = self._state.fleet.replicas[id_]
        held = replica.assigned.states
        evaluations = (
            [each.mode for each in held.values() if each.purpose is c.Purpose.EVAL] if replica.evaluating else []
        )
        return MemberRow(
            role,
            id_,
            state.health,
            replica.version,
            replica.pulling,
            len(held),
            len(evaluations),
            evaluations[0] if evaluations else "",
            bool(held) and (replica.moving_out or state.health in LEAVING),
            replica.cells if replica.lent else (),
            state.tp,
        )

    @property
    def occupied(self) -> Mapping[str, c.Reason]:
        """Replicas that begin anew once the trainer's cells have left their devices, and why each of them does."""
        return self._parts.failures.held

    def why_idle(self, role: str, id_: str) -> c.Reason | None:
        """Why a member that is up has nothing to do, or why a replica that failed does not start yet.

        None for a role that only answers, and for a member that is not up otherwise, works or has lent its devices.
        """
        if role == TRAINER:
            waits = self.trainer_up and self.making is None
            return trainer_waits(self._state, self._parts.batches) if waits else None
        replica = self._state.fleet.replicas.get(id_) if role == REPLICA else None
        if replica is not None and id_ in self.occupied:
            return c.Reason(c.Why.OCCUPIED)
        if replica is None or replica.member.health is not c.Health.UP or replica.lent:
            return None
        if replica.pulling is not None or replica.assigned:
            return None
        return replica_waits(self._state, self._parts.refill, replica)

    def replicas(self) -> Iterator[ReplicaRow]:
        """All replicas, in the order in which they were first started."""
        occupied = self.occupied
        for replica in self._state.fleet.replicas.values():
            health = replica.member.health
            if replica.id in occupied:
                doing = "waiting for devices that the trainer has not left"
            elif health is not c.Health.UP:
                doing = str(health)
            elif replica.pulling is not None:
                does = "pulling" if replica.pull_waits is None else "waiting for a source of"
                doing = f"{does} version {replica.pulling}"
            elif replica.assigned:
                doing = "releasing" if replica.moving_out else "generating"
            elif replica.away:
                doing = "waiting for environments"
            else:
                doing = "idle"
            away = len(replica.away)
            runs = len(replica.assigned) + away
            yield ReplicaRow(replica.id, doing, replica.version, runs, round(replica.kv, 3), away)

    def environments(self) -> Iterator[EnvironmentRow]:
        """All members of the environment role, in the order in which they were first started."""
        sessions = self._state.sessions
        held, called = Counter(sessions.of.values()), Counter(member for member, _ in sessions.calls.values())
        for member in self._state.members.of(ENVIRONMENT):
            answering = called[member.id]
            doing = str(member.health)
            if member.health is c.Health.UP:
                doing = "answering" if answering else "idle"
            yield EnvironmentRow(member.id, doing, held[member.id], answering)

    def relays(self) -> dict[str, str]:
        """What each relay that is up says that it holds, by its id."""
        return {
            member.id: member.phase
            for member in self._state.members.of(RELAY)
            if member.health is c.Health.UP and member.phase
        }

    @property
    def waiting_turns(self) -> int:
        """Number of turns that ended and wait for a session."""
        return len(self._state.sessions.waiting)

    def seats(self) -> list[tuple[str, c.ProcessSeat]]:
        """Where every process with devices stands, by its name: ``replica r1``, and of the trainer's ranks ``trainer 0.1``."""
        return [
            (f"{state.role} {state.id}{f'.{rank}' if rank else ''}", seat)
            for state in self._state.members.states.values()
            if state.health is c.Health.UP or state.health in LEAVING
            for rank, seat in enumerate(state.seats)
        ]

    def notes(self) -> list[str]:
        """What members that are up serve otherwise than their settings say, and why: a line each, with who says it."""
        return [
            f"{state.role} {state.id}: {note}"
            for state in self._state.members.states.values()
            if state.health is c.Health.UP or state.health in LEAVING
            for note in state.notes
        ]

    @property
    def noted(self) -> list[str]:
        """All `notes` of the run so far, each once: those of members that were replaced too."""
        return list(self._state.members.noted)

    def members_down(self) -> list[dict[str, str]]:
        """Members that are not up: role, id and health."""
        states = self._state.members.states.values()
        return [{"role": m.role, "id": m.id, "health": str(m.health)} for m in states if m.health is not c.Health.UP]

    @property
    def given_up(self) -> list[dict[str, str]]:
        """Members that are not restarted any more: role, id, machine, reason. Others do their work; nobody does a ranker's."""
        return list(self._parts.failures.given_up)

    @property
    def task_restarts(self) -> int:
        """Number of restarts of the whole task."""
        return self._parts.failures.task_restarts

    @property
    def lent_machines(self) -> int:
        """How often a trainer that lost its machine took a replica's."""
        return self._parts.failures.lent_machines

    @property
    def replica_restarts(self) -> int:
        """Number of restarts of replicas."""
        return self.restarts(REPLICA)


_BY_PHASE = {
    Phase.PENDING: Whereabouts.POOL,
    Phase.RUNNING: Whereabouts.REPLICA,
    Phase.IN_ENVIRONMENT: Whereabouts.ENVIRONMENT,
    Phase.DONE: Whereabouts.SCORER,
}
_BY_GROUP = {
    GroupPhase.GENERATING: Whereabouts.GROUP,
    GroupPhase.BUFFERED: Whereabouts.BUFFER,
    GroupPhase.TRAINING: Whereabouts.TRAINER,
}


def _whereabouts(state: TrajectoryState, group: GroupPhase) -> Whereabouts | None:
    return _BY_GROUP.get(group) if state.phase is Phase.SCORED else _BY_PHASE[state.phase]
