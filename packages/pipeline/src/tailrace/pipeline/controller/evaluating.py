"""Gives held-out problems to the next free replica with new enough weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace import contracts as c
from tailrace.pipeline.controller.discards import Discards
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.fleet import Replicas, ReplicaState
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.states import TrajectoryState
from tailrace.pipeline.controller.trainer_state import TrainerState

Route = Callable[[ReplicaState, Sequence[TrajectoryState], c.Reason], None]
Pull = Callable[[ReplicaState, int, c.Reason], None]


class Evaluating:
    """Gives evaluations to replicas.

    Args:
        route, pull: the coordinator's functions to route trajectories and to have a replica pull.
    """

    def __init__(
        self,
        evaluations: Evaluations,
        ledger: Ledger,
        fleet: Replicas,
        trainer: TrainerState,
        discards: Discards,
        route: Route,
        pull: Pull,
    ) -> None:
        self._evaluations, self._ledger, self._fleet, self._trainer = evaluations, ledger, fleet, trainer
        self._discards, self._route, self._pull = discards, route, pull

    def place(self, opens: Callable[[c.ReplicaView], bool]) -> None:
        """Route due evaluations, before anything else and each whole, to a replica that is new enough. It keeps its weights."""
        if self._ledger.stranded_evaluations:
            self._place_stranded()
        if not self._evaluations.due:
            return
        mixes = self._ledger.mixes_versions
        candidates = sorted((replica for replica in self._fleet.up() if replica.serves), key=lambda r: r.in_flight)
        for replica in candidates:
            if replica.evaluating or not (mixes or replica.view(opens).open):
                continue
            assert replica.version is not None
            trajectories = self._evaluations.start(replica.version)
            if trajectories:
                for trajectory in trajectories:
                    self._ledger.add(trajectory)
                self._route(replica, trajectories, _reason(replica.version))
        self._pull_for_evaluation()

    def pull_old(self, version: int, reason: c.Reason) -> None:
        """Have an idle replica pull an old version that no replica serves, unless one is about to."""
        up = self._fleet.up()
        if any(version in (replica.version, replica.pulling) for replica in up):
            return
        idle = [replica for replica in up if replica.pulling is None and not replica.in_flight]
        if idle:
            self._pull(idle[0], version, reason)

    def _place_stranded(self) -> None:
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
            self._route(replica, trajectories, _reason(replica.version or 0))
        for version in homeless:  # no replica serves it
            self.pull_old(version, _reason(version))

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
            self._pull(min(free, key=lambda replica: replica.in_flight), published, _reason(min(due)))


def _reason(version: int) -> c.Reason:
    return c.Reason(c.Why.EVALUATION, numbers={"version": version})
