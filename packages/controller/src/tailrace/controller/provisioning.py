"""Asks the provisioning policy who gets which devices, and carries its plan out.

plan ──► StartReplica ───────────────────────────────► Start, once those who leave its devices have left
     ├─► StopReplica ──► STOPPING: it is emptied ────► Stop
     ├─► ResizeReplica ► RESIZING: it is emptied ────► Resize: a new process of the new size
     └─► LendReplica, ReturnReplica ──► `lending.py`
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from tailrace import contracts as c
from tailrace.controller.lending import Lending
from tailrace.controller.members import REPLICA, MemberState
from tailrace.controller.plugin_faults import answered, listed
from tailrace.controller.provisioning_history import Iterations, RoundHistory
from tailrace.controller.recovery.losses import lost
from tailrace.controller.spec import PipelineSpec, RolloutPool
from tailrace.controller.state import State

_ACTIONS = (c.StartReplica, c.StopReplica, c.ResizeReplica, c.LendReplica, c.ReturnReplica)
_WINDOW = 8  # training steps over which times are averaged


class Provisioning:
    """Starts, stops and resizes replicas. A replica is emptied before it stops or is resized, so that its tokens are kept.

    Devices change hands in this order: replicas stop; those that grow are resized; then, and after those that shrink, new ones
    start. So at no time do replicas need more devices than before or after a plan. Where they are the trainer's too, its cells
    leave them first, as before a replica that failed begins anew.
    """

    def __init__(self, state: State, rounds: RoundHistory, lending: Lending) -> None:
        self._state, self._rounds, self._lending = state, rounds, lending
        self._members, self._fleet, self._outbox = state.members, state.fleet, state.outbox
        self.iterations = Iterations(state)
        growth = state.spec.provisioning.growth()
        self._most = None if growth is None else growth.most
        self.started = 0
        self.wanted: int | None = None
        """Number of replicas that a resumed run was changed to; None if it was not."""
        self._stepped: deque[tuple[float, float]] = deque(maxlen=_WINDOW + 1)
        self._gradients_s: deque[float] = deque(maxlen=_WINDOW)
        self._stopping: dict[str, c.Reason] = {}
        self._resizing: dict[str, tuple[bool, c.Reason]] = {}  # whether it grows
        self._starting: dict[str, c.Reason] = {}

    def stepped(self, training_s: float, added_s: float) -> None:
        """Note that a batch was trained on, the seconds that the trainer took for it, and those of what cells had added."""
        self._stepped.append((self._state.now, training_s))
        self._gradients_s.append(training_s + added_s)
        self.iterations.stepped()

    def finished(self, tokens: int) -> None:
        """Note the length of a response to train on."""
        self._rounds.finished(tokens)
        self.iterations.finished(tokens)

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
            progress=self._state.progress(),
            now_s=self._state.now,
            training_s=sum(wall for _, wall in steps) / len(steps) if steps else 0.0,
            step_s=between,
            round=self._rounds.open,
            rounds=tuple(self._rounds.records),
            loads=self._state.views() if self._rounds.used or self._lending.yields else (),
            lengths=tuple(self._rounds.lengths or self.iterations.lengths),
            lent=self._lending.lent,
            iterations=tuple(self.iterations.records),
            batch=self._lending.batch(),
            round_s=self._rounds.open_s,
            gradients_s=sum(self._gradients_s) / max(1, len(self._gradients_s)),
            loans=tuple(self._lending.loans),
        )

    def plan(self) -> None:
        """Ask the policy and carry out its actions."""
        policy = self._state.spec.provisioning
        actions = listed("provisioning", policy, "plan", policy.plan(self.view()), _ACTIONS)
        for action in actions:
            if isinstance(action, c.StartReplica):
                self._check_room(action)
                self._start(action)
            elif self._members.get(REPLICA, action.replica) is None:
                raise answered("provisioning", policy, "plan", action, "a start, or a replica to stop or to resize")
            elif isinstance(action, c.StopReplica):
                self._stop(action)
            elif isinstance(action, c.LendReplica):
                self._lend(action)
            elif isinstance(action, c.ReturnReplica):
                self._lending.give_back(action)
            else:
                self._resize(action)
        self._start_waiting()
        if not actions and all(member.health is c.Health.STOPPING for member in self._members.of(REPLICA)):
            raise answered("provisioning", policy, "plan", actions, "at least one replica that is not stopping")

    def keep(self, replicas: int) -> int:
        """Keep this many replicas on resume, when none runs. Returns how many more must be started."""
        self.wanted = replicas
        here = list(self._members.of(REPLICA))
        for member in here[replicas:]:
            self._members.leaves(member)
        return max(0, replicas - len(here))

    def start(self, replicas: int) -> None:
        """Start further replicas that the user asked for."""
        for _ in range(replicas):
            self._start(c.StartReplica())
        self._start_waiting()

    def _check_room(self, action: c.StartReplica) -> None:
        here = sum(member.health is not c.Health.STOPPING for member in self._members.of(REPLICA))
        if self._most is not None and here >= self._most:
            expected = f"no more than the {self._most} replicas that it may have"
            raise answered("provisioning", self._state.spec.provisioning, "plan", action, expected)

    def _start(self, action: c.StartReplica) -> None:
        if action.tp is not None and (type(action.tp) is not int or action.tp < 1):
            expected = "a whole number of devices of at least 1 for a replica"
            raise answered("provisioning", self._state.spec.provisioning, "plan", action, expected)
        here = [member.pool for member in self._members.of(REPLICA)]
        pool = pool_for(self._state.spec, here, action.pool)
        if pool is None:
            expected = (
                f"one of the pools {', '.join(pool.name for pool in self._state.spec.pools) or '(the run has none)'}"
            )
            raise answered("provisioning", self._state.spec.provisioning, "plan", action, expected)
        name = f"r{self.started}"
        self.started += 1
        member = self._members.add(REPLICA, name, site=pool.site, pool=pool.name)
        member.avoids = self._members.given_up
        self._spans(member, pool.tp if action.tp is None else action.tp)
        self._fleet.add(member, pool.replica_batch)
        self._lending.spans(name)
        self._starting[name] = action.reason

    def _lend(self, action: c.LendReplica) -> None:
        replica = self._fleet.replicas[action.replica]
        resized = [member.id for member in self._members.of(REPLICA) if member.health is c.Health.RESIZING]
        if resized:
            expected = f"none while replicas are resized: {', '.join(resized)}"
            raise answered("provisioning", self._state.spec.provisioning, "plan", action, expected)
        if not replica.cells or replica.kept or replica.evaluating or not (replica.serves or replica.lent):
            expected = (
                "a replica on the devices of a cell of the trainer, that serves a version and runs no evaluation, and none on "
                "the cell of a judge"
            )
            raise answered("provisioning", self._state.spec.provisioning, "plan", action, expected)
        self._lending.lend(action)

    def go_on(self) -> None:
        """Stop and resize replicas that hold no trajectories any more, and start those whose devices are free."""
        replicas = self._fleet.replicas
        for name in [name for name in self._stopping if not replicas[name].assigned]:
            reason = self._stopping.pop(name)
            if self._members.get(REPLICA, name) is not None:  # else it died while it was emptied
                self._outbox.send(c.Stop, role=REPLICA, id=name, reason=reason)
        gone = not self._resizing or self._gone()
        for name, (grows, reason) in list(self._resizing.items()):
            member = self._members.get(REPLICA, name)
            if member is None or member.health is not c.Health.RESIZING:
                del self._resizing[name]  # it went down before, and starts at its new size if it is restarted
            elif not replicas[name].assigned and (gone or not grows) and not self._state.occupied(member):
                del self._resizing[name]
                lost(self._state, member)
                self._members.starts_anew(member)
                self._outbox.send(
                    c.Resize, replica=name, tp=member.tp, place=self._members.place(member), reason=reason
                )
        self._start_waiting()

    def restarted(self) -> None:
        """Forget what was under way when the driver died: every member that is not stopping starts anew, at its new size."""
        self._resizing.clear()
        self._starting.clear()
        self.iterations.restarted()

    def _gone(self) -> bool:
        """Whether no replica has devices that it is to leave."""
        return all(member.health is not c.Health.STOPPING for member in self._members.of(REPLICA))

    def _start_waiting(self) -> None:
        if not self._starting or self._resizing or not self._gone():
            return  # they have the devices still
        for name, reason in list(self._starting.items()):
            member = self._members.get(REPLICA, name)
            if member is not None and self._state.occupied(member):
                continue
            del self._starting[name]
            if member is not None:
                place = self._members.place(member)
                self._outbox.send(c.Start, role=REPLICA, id=name, place=place, reason=reason, tp=member.own_tp)

    def _stop(self, action: c.StopReplica) -> None:
        member, replica = self._members.get(REPLICA, action.replica), self._fleet.replicas[action.replica]
        if replica.lent:
            raise answered(
                "provisioning", self._state.spec.provisioning, "plan", action, "a replica whose devices are not lent"
            )
        assert member is not None  # `plan` has looked
        if self._starting.pop(action.replica, None) is not None:
            self._members.leaves(member)  # it waited for devices: there is no process to stop
        elif member.health is not c.Health.STOPPING:
            member.health = c.Health.STOPPING
            self._stopping[action.replica] = action.reason
            self._state.empty(replica, c.Why.STOPPING)

    def _resize(self, action: c.ResizeReplica) -> None:
        member, replica = self._members.get(REPLICA, action.replica), self._fleet.replicas[action.replica]
        assert member is not None  # `plan` has looked
        fits = type(action.tp) is int and action.tp >= 1 and not action.tp & (action.tp - 1)
        if member.health is c.Health.STOPPING or not fits:
            expected = "a power of two of devices for a replica that is not stopping"
            raise answered("provisioning", self._state.spec.provisioning, "plan", action, expected)
        if self._lending.lent:
            expected = f"none while the devices of {', '.join(self._lending.lent)} are lent, which return first"
            raise answered("provisioning", self._state.spec.provisioning, "plan", action, expected)
        grows = action.tp > member.tp or self._resizing.get(action.replica, (False,))[0]
        self._spans(member, action.tp)
        self._lending.spans(action.replica)
        if action.replica not in self._starting:
            member.health = c.Health.RESIZING
            self._resizing[action.replica] = grows, action.reason
            self._state.empty(replica, c.Why.RESIZING)

    def _spans(self, member: MemberState, tp: int) -> None:
        pool = pool_for(self._state.spec, (), member.pool)
        member.tp, member.own_tp = tp, None if pool is not None and tp == pool.tp else tp


def pool_for(spec: PipelineSpec, members: Iterable[str], wanted: str | None = None) -> RolloutPool | None:
    """The pool that a new replica joins.

    Args:
        spec: the pipeline, with its pools in order.
        members: the pool of each replica that is not gone.
        wanted: a pool's name; None leaves the choice.

    Returns:
        The pool of that name, or None if there is none. Without a name the first pool that has fewer replicas than it was
        given, or else the last; where all replicas are alike, one without a name that has the sizes of the run.
    """
    pools = spec.pools or (RolloutPool("", 0, tp=spec.tp, replica_batch=spec.replica_batch),)
    if wanted is not None:
        return next((pool for pool in pools if pool.name == wanted), None)
    counts = Counter(members)
    return next((pool for pool in pools if counts[pool.name] < pool.count), pools[-1])
