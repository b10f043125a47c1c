"""Asks the provisioning policy who gets which devices, and carries its plan out."""

from __future__ import annotations

from collections import deque

from tailrace import contracts as c
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.members import REPLICA, Members
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.controller.plugin_faults import answered, listed
from tailrace.pipeline.controller.trainer_state import TrainerState
from tailrace.pipeline.spec import PipelineSpec

_WINDOW = 8  # training steps over which times are averaged


class Provisioning:
    """Starts and stops replicas. A replica is emptied before it stops, so that its tokens are kept."""

    def __init__(
        self,
        spec: PipelineSpec,
        members: Members,
        fleet: Replicas,
        trainer: TrainerState,
        coordinator: Coordinator,
        outbox: Outbox,
    ) -> None:
        self.started = 0
        self.wanted: int | None = None
        """Number of replicas that a resumed run was changed to; None if it was not."""
        self._spec, self._members, self._fleet, self._trainer = spec, members, fleet, trainer
        self._coordinator, self._outbox = coordinator, outbox
        self._now = 0.0
        self._stepped: deque[tuple[float, float]] = deque(maxlen=_WINDOW + 1)
        self._stopping: dict[str, c.Reason] = {}

    def stepped(self, now: float, training_s: float) -> None:
        """Note that a batch was trained on, and the seconds that the trainer took for it."""
        self._stepped.append((now, training_s))

    def view(self) -> c.FleetView:
        """The view for provisioning and recovery policies."""
        replicas, steps = self._fleet.replicas, self._stepped
        between = (steps[-1][0] - steps[0][0]) / (len(steps) - 1) if len(steps) > 1 else 0.0
        return c.FleetView(
            machines=dict(self._members.machines),
            members=[
                state.view(replicas[state.id].in_flight if state.role == REPLICA else 0)
                for state in self._members.states.values()
            ],
            progress=self._coordinator.progress(),
            now_s=self._now,
            training_s=sum(wall for _, wall in steps) / len(steps) if steps else 0.0,
            step_s=between,
        )

    def plan(self, now: float) -> None:
        """Ask the policy and carry out its actions."""
        self._now = now
        policy = self._spec.provisioning
        actions = listed("provisioning", policy, "plan", policy.plan(self.view()), (c.StartReplica, c.StopReplica))
        for action in actions:
            if isinstance(action, c.StartReplica):
                self._start(action.reason)
            elif self._members.get(REPLICA, action.replica) is None:
                raise answered("provisioning", policy, "plan", action, "StartReplica, or StopReplica of a replica")
            else:
                self._stop(action)
        if not actions and all(member.health is c.Health.STOPPING for member in self._members.of(REPLICA)):
            raise answered("provisioning", policy, "plan", actions, "at least one replica that is not stopping")

    def keep(self, replicas: int) -> int:
        """Of a run that resumes, so that no replica runs, keep so many. Returns how many more are to be started."""
        self.wanted = replicas
        here = list(self._members.of(REPLICA))
        for member in here[replicas:]:
            member.health = c.Health.DOWN
            del self._members.states[REPLICA, member.id]
        return max(0, replicas - len(here))

    def start(self, replicas: int) -> None:
        """Start further replicas that the user asked for."""
        for _ in range(replicas):
            self._start(c.Reason(c.Why.PLANNED))

    def _start(self, reason: c.Reason) -> None:
        name = f"r{self.started}"
        self.started += 1
        member = self._members.add(REPLICA, name)
        member.avoids = self._members.given_up
        self._outbox.send(c.Start, role=REPLICA, id=name, place=c.Place(avoid=member.avoids), reason=reason)
        self._fleet.add(member, self._spec.replica_batch)

    def stop_emptied(self) -> None:
        """Send `Stop` to replicas that are stopping and hold no trajectories any more."""
        for name in [name for name in self._stopping if not self._fleet.replicas[name].assigned]:
            self._outbox.send(c.Stop, role=REPLICA, id=name, reason=self._stopping.pop(name))

    def _stop(self, action: c.StopReplica) -> None:
        member, replica = self._members.get(REPLICA, action.replica), self._fleet.replicas[action.replica]
        if member is not None and member.health is not c.Health.STOPPING:
            member.health = c.Health.STOPPING
            self._stopping[action.replica] = action.reason
            self._coordinator.empty(replica)
