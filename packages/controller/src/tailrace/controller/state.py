"""The state: all that the controller owns, built once and handed once to each part that decides.

    now, spec     the time of the events that are handled, and the pipeline
    ledger        life of every trajectory and group       fleet       load of every replica
    members       who lives where                          trainer     versions and checkpoints
    sessions      of environments                          discards    what the store still has to drop
    scoring       what still has to be scored              evaluations held-out problems
    gate, source  what admission and batching opened       outbox      commands of this instant

What concerns several owners at once is a method here: what is routed, interrupted, or no longer moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace import contracts as c
from tailrace.controller.discards import Discards
from tailrace.controller.evaluations import Evaluations
from tailrace.controller.fleet import EMPTIED, Replicas, ReplicaState
from tailrace.controller.ledger import Ledger
from tailrace.controller.lengths import PredictedLengths
from tailrace.controller.members import REPLICA, Members, MemberState
from tailrace.controller.outbox import Outbox
from tailrace.controller.prefix_caches import begins, prefixes
from tailrace.controller.scoring import Scoring
from tailrace.controller.sessions import Sessions
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.trainer_state import TrainerState
from tailrace.controller.trajectories import TrajectoryState
from tailrace.repack import ThroughputModel


@dataclass(slots=True)
class Brought:
    """What one instant brought, as far as the state after it does not show it. For observers: nothing is decided by it.

    `dropped` has the trajectories of each group, or surplus samples, that left untrained, with the reason. `answered` are the
    answers of environments that somebody waited for; `unanswered` counts calls that failed, but for those whose session was
    lost.
    """

    dropped: list[tuple[Sequence[TrajectoryState], c.Reason]] = field(default_factory=list)
    answered: list[c.Turned] = field(default_factory=list)
    unanswered: int = 0


class State:
    """The state of one run.

    `now` is in seconds on the run's clock. `failure` says why the run failed; None if it did not. `sees_prefixes` says whether
    routing plans with what prefix caches have; otherwise that is not noted.

    Args:
        spec: the pipeline.
        first_version: the version that the trainer holds at the start.
    """

    def __init__(self, spec: PipelineSpec, first_version: int) -> None:
        self.spec = spec
        self.now = 0.0
        self.brought = Brought()
        self.failure: str | None = None
        self.sees_prefixes = spec.routing.sees_prefixes()
        predictions = PredictedLengths(most=spec.max_tokens)
        self.ledger = Ledger(mixes_versions=spec.sync.mixes_versions, records=spec.ranker, predictions=predictions)
        self.members = Members(spec.machines)
        self.fleet = Replicas(self.ledger.view, follows=spec.ranker)
        self.trainer = TrainerState(first_version, spec.keep_checkpoints, spec.steps, spec.keep_checkpoint_bytes)
        self.evaluations = Evaluations(spec.evaluation)
        self.gate = spec.admission.gate(spec.batch_groups)
        self.gate.reset(first_version, {})
        self.source = spec.batching.open()
        self.outbox = Outbox(self.fleet)
        self.sessions = Sessions(self.ledger, self.members, self.outbox, spec.environment_sessions)
        self.discards = Discards(self.ledger, self.outbox, self.sessions)
        self.scoring = Scoring(self.ledger, self.outbox)

    def fail(self, reason: str) -> None:
        """End the run with a reason."""
        self.failure = reason
        self.outbox.send(c.Fail, reason=reason)

    def learn(self, model: ThroughputModel) -> None:
        """Have the policies that plan with the costs of a decoding step plan with these from now on."""
        costs = dataclasses.astuple(model)
        routing, relocation = self.spec.routing, self.spec.relocation
        self.spec = dataclasses.replace(
            self.spec, routing=routing.with_costs(*costs), relocation=relocation.with_costs(*costs)
        )

    # ---- what policies see ----------------------------------------------------------------------------------------

    def behind(self) -> int:
        """Number of replicas that are up with other weights than the newest."""
        published = self.trainer.published
        return sum([replica.version != published for replica in self.fleet.up()])

    def progress(self, behind: int | None = None) -> c.Progress:
        """How far the run is.

        Args:
            behind: what `behind` gives now; None: ask it, which looks at each replica.
        """
        trainer, ledger = self.trainer, self.ledger
        return c.Progress(
            version=trainer.version,
            published=trainer.published,
            admitted=ledger.counts.admitted,
            generating=ledger.generating,
            buffered=len(ledger.buffered),
            consumed=trainer.step * self.spec.batch_groups + len(trainer.accumulated),
            dropped=ledger.counts.filtered + ledger.counts.failed,
            batch_groups=self.spec.batch_groups,
            last_version=trainer.steps,
            behind=self.behind() if behind is None else behind,
        )

    def opens(self) -> Callable[[c.ReplicaView], bool]:
        """A function that says whether a replica may be given new groups now.

        One that a repack has released gets none until it serves the newest weights that there are or are about to be.
        """
        progress, accepts = self.progress(), self.spec.sync.accepts
        newest, replicas = self.trainer.awaited, self.fleet.replicas
        return lambda view: accepts(view, progress) and not replicas[view.replica].waits_for(newest)

    def views(self) -> list[c.ReplicaView]:
        """The replicas that are up."""
        opens = self.opens()
        return [replica.view(opens) for replica in self.fleet.up()]

    def prefixes(self, trajectory: c.TrajectoryView) -> Mapping[str, int]:
        """What prefix caches have of a trajectory: see `Cycle.prefixes`."""
        return prefixes(self.ledger, self.fleet, trajectory.trajectory, trajectory.group)

    # ---- what goes on ---------------------------------------------------------------------------------------------

    @property
    def generates(self) -> bool:
        """Whether a replica generates, or a trajectory waits for its environment."""
        if self.sessions.calls or self.sessions.waiting:
            return True
        return any(replica.assigned.states for replica in self.fleet.replicas.values())

    @property
    def only_scores(self) -> bool:
        """Whether all that has started is generated, and some of it waits for its reward."""
        if not self.ledger.started_groups or self.ledger.pooled_started or self.generates:
            return False
        return not any(replica.away for replica in self.fleet.replicas.values())

    def occupied(self, member: MemberState) -> bool:
        """Whether a replica's devices hold what cells of the trainer have not moved away."""
        if member.role != REPLICA or not self.spec.colocated or not self.trainer.up:
            return False
        return not self.trainer.away.issuperset(self.fleet.replicas[member.id].cells)

    # ---- trajectories and their replicas --------------------------------------------------------------------------

    def route(self, replica: ReplicaState, states: Sequence[TrajectoryState], *reasons: c.Reason) -> None:
        """Give a replica trajectories, with one reason for all of them or one for each."""
        assert replica.version is not None
        if self.ledger.moving:
            for state in states:
                self.unbind(state)
        if self.sees_prefixes:
            begins(self.ledger, replica, states)
        refs = self.ledger.routed(states, replica.id, replica.version)
        self.outbox.send_to(replica, c.Route, trajectories=tuple(refs), reasons=reasons)
        evaluations = sum([ref.purpose is c.Purpose.EVAL for ref in refs])
        self.fleet.routed(replica, states, evaluations=evaluations)

    def interrupt(self, replica: ReplicaState, names: tuple[str, ...], reason: c.Reason, what: str) -> None:
        """Have a replica hand trajectories back; `what` says what for: see `ReplicaState.asked`."""
        if replica.fresh:  # a snapshot came behind every answer
            replica.asked.clear()
        replica.asked[self.outbox.send_to(replica, c.Interrupt, trajectories=names, reason=reason)] = what

    def empty(self, replica: ReplicaState, why: c.Why) -> None:
        """Empty a replica that loses its devices: its trajectories go back to the pool with their tokens."""
        replica.hands_over(None)
        if replica.assigned:
            self.interrupt(replica, tuple(replica.assigned), c.Reason(why), EMPTIED)

    def unbind(self, trajectory: TrajectoryState) -> None:
        """Cancel a trajectory's move to its destination."""
        if trajectory.destination is not None:
            self.fleet.replicas[trajectory.destination].incoming -= 1
            self.ledger.bind(trajectory, None)

    # ---- comparison -----------------------------------------------------------------------------------------------

    def plain(self, parts: Mapping[str, object]) -> dict[str, Any]:
        """The whole state as plain data, so that two can be compared: one that ran, and one that its log rebuilt.

        Args:
            parts: objects of which only the plain attributes are state, by name.
        """
        plain: dict[str, Any] = {
            "ledger": dataclasses.asdict(self.ledger),
            "members": self.members.plain(),
            "fleet": self.fleet.plain(),
            "trainer": dataclasses.asdict(self.trainer),
            "evaluations": dataclasses.asdict(self.evaluations),
            "sessions": self.sessions.plain(),
        }
        for name, part in {"state": self, "scoring": self.scoring, **parts}.items():
            plain[name] = {key: v for key, v in vars(part).items() if isinstance(v, int | float | str | None)}
        plain["seq"], plain["gate"], plain["source"] = self.outbox.seq, self.gate.state(), self.source.state()
        plain["discards"] = {seq: list(names) for seq, (names, _) in self.discards.pending.items()}
        return plain
