"""What a log says of a run so far: its members, trajectories, groups and versions, folded from events and commands. Pure.

A group counts from the first routing of one of its trajectories on: the log does not tell what waits in the pool before.
"""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import DATA, REPLICA, TRAINER
from tailrace.controller.spec import PipelineSpec
from tailrace.report.fold.states import (
    AGAIN,
    AGAIN_IN_ROUNDS,
    ANEW,
    DELAYED,
    RELEASING,
    Group,
    Outage,
    PastMember,
    Stage,
    Trajectory,
)
from tailrace.report.fold.turns import TurnHistory
from tailrace.report.words import why


class GroupHistory:
    """The part of a history that counts groups.

    `consumed` are the groups of the versions that the trainer may still fall back behind. `ended` counts groups that were not
    trained on, by reason.
    """

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.stages: Counter[Stage] = Counter()
        self.ended: Counter[str] = Counter()
        self.consumed: dict[int, list[Group]] = {}

    @property
    def buffered(self) -> int:
        """Groups that are complete and not consumed."""
        return self.stages[Stage.BUFFERED]

    @property
    def generating(self) -> int:
        """Groups that have started and are not complete."""
        return self.stages[Stage.GENERATING]

    @property
    def trained(self) -> int:
        """Groups that were trained on."""
        return self.stages[Stage.TRAINED]

    @property
    def dropped(self) -> int:
        """Groups that ended and were not trained on."""
        return self.ended.total()

    @property
    def started(self) -> int:
        """Groups that have started, or were dropped before."""
        return self.stages.total() + self.dropped

    def _group(self, index: int) -> Group:
        group = self.groups.get(index)
        if group is None:
            group = self.groups[index] = Group(index)
            self.stages[group.stage] += 1
        return group

    def _to(self, group: Group, stage: Stage, version: int | None = None) -> None:
        self.stages[group.stage] -= 1
        self.stages[stage] += 1
        group.stage, group.version = stage, version

    def _start_over(self, known: Sequence[Trajectory]) -> None:
        """Trajectories begin anew after all of their groups, also those that were complete or trained on."""
        for group in {each.ref.group: self.groups[each.ref.group] for each in known}.values():
            if group.version is not None and group in self.consumed.get(group.version, ()):
                self.consumed[group.version].remove(group)
            self._to(group, Stage.GENERATING)
            group.scored = 0
        for each in known:
            each.finished, each.reward, each.replica = False, None, None


_KINDS = [kind for union in (c.Event, c.Command) for kind in typing.get_args(union)]
_UP, _DOWN, _STARTING, _STOPPING = c.Health.UP, c.Health.DOWN, c.Health.STARTING, c.Health.STOPPING


class History(GroupHistory, TurnHistory):
    """The fold. `observe` takes the instants of a log in order.

    `made` maps each version that training made, and did not fall back behind, to its number of batches. `consumed` are the
    groups of the versions that it may still fall back behind. `ended` counts groups that were not trained on, by reason, and
    `deferred` those whose prompt comes again, `delayed` those that training
    waited for too long. `offcuts` are the tokens of finished trajectories that were dropped, by reason,
    `unfinished` those of trajectories that were dropped before, as far as they are known.

    Args:
        spec: the pipeline.
        first: the version that the run began with.
    """

    def __init__(self, spec: PipelineSpec, *, first: int = 0) -> None:
        GroupHistory.__init__(self)
        TurnHistory.__init__(self)
        gate, batch = spec.admission.gate(spec.batch_groups), spec.batch_groups
        launch = spec.batching.open().next(c.Progress(0, -1, 0, 0, 0, 0, 0, batch, spec.steps))
        self.batchwise = gate.starts_batchwise()  # its room grows as a batch starts
        self.spec, self.first, self.bound = spec, first, gate.bound
        self.room = (1 + (gate.bound or 0)) * batch if self.batchwise else gate.room
        limits = [limit for limit in (self.room, spec.buffer_groups) if limit is not None]
        self.open_limit = min(limits, default=4 * batch)
        self.needed = 1 if launch is None else launch.needed
        self._again = AGAIN if launch is None or launch.round is None else AGAIN | AGAIN_IN_ROUNDS
        self.mixes_versions, self.now = spec.sync.mixes_versions, 0.0
        self.members: dict[tuple[str, str], PastMember] = {}
        self.trajectories: dict[str, Trajectory] = {}
        self.pending: dict[str, Trajectory] = {}
        self.version, self.published, self.publishing, self.shown = first, -1, -1, -1
        self.making: int | None = None
        self.made: dict[int, int] = {first: 0}
        self.offcuts: dict[str, list[int]] = {}
        self.unfinished: list[int] = []
        self.relays: tuple[str, ...] = ()
        self.restarts: Counter[str] = Counter()
        self.faults: list[Outage] = []
        self.deferred = self.delayed = self.surplus_samples = self.regenerated = self.resumed_on_newer = self.parts = 0
        self.finished = self.recovering = False
        self.failure: str | None = None
        self._down: dict[tuple[str, str], Outage] = {}
        self._aborts: dict[int, tuple[str, ...]] = {}  # drops that the store has not answered
        self._task_restarted_s: float | None = None
        self._oldest: dict[int, int] = {}  # version that a checkpoint lets the trainer go back to
        handlers = {kind: getattr(self, f"_on_{kind.__name__.lower()}", None) for kind in _KINDS}
        self._on: dict[type, Callable[[Any], None]] = {kind: on for kind, on in handlers.items() if on is not None}

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        self.now = now
        handlers = self._on
        for each in (events, commands):
            for one in each:
                on = handlers.get(type(one))
                if on is not None:
                    on(one)

    @property
    def step(self) -> int:
        """Batches trained on."""
        return self.made[self.version]

    def batch(self, version: int) -> list[Trajectory]:
        """What was consumed for a version so far."""
        return [trajectory for group in self.consumed.get(version, ()) for trajectory in group.members.values()]

    def member(self, role: str, id_: str) -> PastMember:
        """A member, known or new."""
        found = self.members.get((role, id_))
        if found is None:
            found = self.members[role, id_] = PastMember(role, id_)
        return found

    # ---- trajectories ---------------------------------------------------------------------------------------------

    def _on_route(self, command: c.Route) -> None:
        replica = self.member(REPLICA, command.replica)
        version = self.published if replica.version is None else replica.version
        for ref in command.trajectories:
            name = ref.trajectory
            known = self.trajectories.get(name)
            if known is None:
                known = self.trajectories[name] = Trajectory(ref, version)
                if ref.purpose is c.Purpose.TRAIN:
                    self._group(ref.group).members[name] = known
            elif known.version is None or known.version == version:
                known.version = version
            elif self.mixes_versions and ref.purpose is c.Purpose.TRAIN:
                known.version = min(known.version, version)
                self.resumed_on_newer += 1
            else:
                known.version = version
                self.regenerated += 1
            known.replica, known.tokens, known.finished = replica.id, ref.kept, False
            self.pending.pop(name, None)
            replica.holds[name] = known
            replica.evaluating += ref.purpose is c.Purpose.EVAL

    def _on_interrupt(self, command: c.Interrupt) -> None:
        replica = self.member(REPLICA, command.replica)
        replica.releasing = command.reason.why in RELEASING and bool(replica.holds)

    def _on_interrupted(self, event: c.Interrupted) -> None:
        known = self._left(event.replica, event.trajectory)
        if known is not None and known.replica == event.replica:
            known.replica, known.tokens = None, event.tokens_kept
            self.pending[event.trajectory] = known

    def _on_finished(self, event: c.Finished) -> None:
        known = self._left(event.replica, event.trajectory)
        if known is not None and not known.finished:
            self._finishes(event.trajectory, known)
            known.tokens, known.truncated = event.tokens, event.reason is c.FinishReason.LENGTH

    def _on_refused(self, event: c.Refused) -> None:
        known = self._left(event.replica, event.trajectory)
        if known is not None and known.replica == event.replica:
            known.replica = None

    def _on_scored(self, event: c.Scored) -> None:
        known = self.trajectories.get(event.trajectory)
        if known is None or not known.finished or known.reward is not None:
            return
        known.reward = event.reward
        if known.ref.purpose is c.Purpose.TRAIN:
            group = self.groups[known.ref.group]
            group.scored += 1
            if group.scored == self.needed and group.stage is Stage.GENERATING:
                self._to(group, Stage.BUFFERED)

    def _on_abort(self, command: c.Abort) -> None:
        names, reason = command.trajectories, command.reason.why
        known = self._known(names)
        if reason in ANEW:
            for each in known:
                counts = reason is not c.Why.EVALUATION and (reason is not c.Why.TASK_RESTART or self.recovering)
                self.regenerated += counts and each.version is not None  # a new store is told again
                each.version, each.tokens, each.observed, each.turns = None, 0, 0, 0
            if reason is c.Why.TASK_RESTART:
                self._start_over(known)
                self.pending.update({each.ref.trajectory: each for each in known})
            return
        again = names in self._aborts.values()  # to a new data role
        self._aborts[command.seq] = names
        if again:
            return
        for each in known:
            name = each.ref.trajectory
            if each.replica is not None:
                self._left(each.replica, name)
            del self.trajectories[name], self.groups[each.ref.group].members[name]
            self.pending.pop(name, None)
            self.away.pop(name, None)
            if each.finished:
                self.offcuts.setdefault(reason, []).append(each.tokens)
            else:
                self.unfinished.append(each.tokens)
        self.unfinished += [0] * (len(names) - len(known))  # no replica ever had them
        if reason is c.Why.SURPLUS_SAMPLE:
            self.surplus_samples += len(names)
            return
        self.delayed += reason in DELAYED
        if reason in self._again:
            self.deferred += 1
        else:
            self.ended[reason] += 1
        if known:
            self.stages[self.groups.pop(known[0].ref.group).stage] -= 1

    def _on_discarded(self, event: c.Discarded) -> None:
        self._aborts.pop(event.answers, None)

    def _known(self, names: Iterable[str]) -> list[Trajectory]:
        known = self.trajectories
        return [known[name] for name in names if name in known]

    def _left(self, replica: str, name: str) -> Trajectory | None:
        """A trajectory is no longer on a replica. Returns it, unless it is settled."""
        member = self.member(REPLICA, replica)
        known = member.holds.pop(name, None)
        if known is not None:
            member.evaluating -= known.ref.purpose is c.Purpose.EVAL
            member.releasing = member.releasing and bool(member.holds)
        return self.trajectories.get(name)

    # ---- groups and the trainer -----------------------------------------------------------------------------------

    def _on_step(self, command: c.Step) -> None:
        self._take(command.version, [name for names in command.mini_batches for name in names])

    def _on_accumulate(self, command: c.Accumulate) -> None:
        self._take(command.version, command.trajectories)
        self.parts += 1  # several at once, where cells of the trainer work beside each other

    def _take(self, version: int, names: Sequence[str]) -> None:
        self.making = version
        for known in self._known(names):
            group = self.groups[known.ref.group]
            if group.version != version:
                self._to(group, Stage.TRAINING, version)
                self.consumed.setdefault(version, []).append(group)

    def _on_accumulated(self, _: c.Accumulated) -> None:
        self.parts, self.making = self.parts - 1, self.making if self.parts > 1 else None

    def _on_stepped(self, event: c.Stepped) -> None:
        self.made[event.version] = self.step + 1
        self.version, self.making = event.version, None
        for group in self.consumed.get(event.version, ()):
            self._to(group, Stage.TRAINED, event.version)

    def _on_checkpoint(self, command: c.Checkpoint) -> None:
        self._oldest[command.version] = min((*command.keep, command.version))

    def _on_durable(self, event: c.Durable) -> None:
        """What nobody can fall back behind any more is settled."""
        oldest = self._oldest.pop(event.version, -1)
        for version in [version for version in self.consumed if version <= oldest and version in self.made]:
            for group in self.consumed.pop(version):
                del self.groups[group.index]
                for name in group.members:
                    del self.trajectories[name]

    def _fall_back(self, version: int) -> None:
        """The trainer holds the weights of a checkpoint. Its version is a new one if anybody may have seen newer weights."""
        for undone in [undone for undone in self.consumed if undone > version]:
            for group in self.consumed.pop(undone):
                self._to(group, Stage.BUFFERED)
        step, self.making, self.parts = self.made[version], None, 0
        self.version = version if self.shown <= version else self.shown + 1
        self.publishing = min(self.publishing, self.version)
        self.made = {made: step for made, step in self.made.items() if made <= version} | {self.version: step}

    # ---- members --------------------------------------------------------------------------------------------------

    def _on_pull(self, command: c.Pull) -> None:
        self.member(REPLICA, command.replica).pulling = command.version

    def _on_pulled(self, event: c.Pulled | c.PullFailed) -> None:
        replica = self.member(REPLICA, event.replica)
        replica.version, replica.pulling = event.version if isinstance(event, c.Pulled) else None, None

    _on_pullfailed = _on_pulled

    def _on_lend(self, command: c.Lend | c.Return) -> None:
        self.member(REPLICA, command.replica).lent = command.cells if isinstance(command, c.Lend) else ()

    _on_return = _on_lend

    def _on_publish(self, command: c.Publish) -> None:
        self.publishing, self.relays = max(self.publishing, command.version), tuple(command.relays)
        if not command.sealed:
            self.shown = max(self.shown, command.version)

    def _on_reveal(self, command: c.Reveal) -> None:
        self.shown = max(self.shown, command.version)

    def _on_published(self, event: c.Published) -> None:
        self.published = max(self.published, event.version)

    def _on_start(self, command: c.Start) -> None:
        self.member(command.role, command.id).health = _STARTING

    def _on_up(self, event: c.Up) -> None:
        member = self.member(event.role, event.id)
        if member.health is not _STOPPING:
            member.health = _UP
        fault = self._down.pop((event.role, event.id), None)
        if fault is not None:
            fault.up_s = self.now
        if event.role == TRAINER:
            self._fall_back(self.first if event.version is None else event.version)
        elif event.role == DATA and self.recovering:
            self._survived(set(event.held), event.partial)

    def _survived(self, held: set[str], partial: dict[str, tuple[int, int]]) -> None:
        """The store says what it holds after the driver's death."""
        self.recovering = False
        self.away.clear()
        for name, known in self.trajectories.items():
            if known.reward is None and name not in held:
                known.finished, known.replica, self.pending[name] = False, None, known
                known.version, known.tokens = partial.get(name, (None, 0))
            elif not known.finished:
                self._finishes(name, known)

    def _on_down(self, event: c.Down) -> None:
        member = self.members.get((event.role, event.id))
        if member is None or member.health is _DOWN:
            return
        self._lose(member)
        if event.cause is c.Cause.STOPPED or member.health is _STOPPING:
            del self.members[event.role, event.id]
        else:
            self._fault(member, event.reason)

    def _on_restart(self, command: c.Restart) -> None:
        """One that is not down was taken for down by the controller itself, unless all of them start again."""
        member, reason = self.member(command.role, command.id), command.reason.why
        if reason is c.Why.TASK_RESTART and self._task_restarted_s != self.now:
            self._task_restarted_s = self.now
            self._all_anew()
        if member.health is not _DOWN and reason not in (c.Why.LOST_IN_CRASH, c.Why.TASK_RESTART):
            self._lose(member)
            self._fault(member, why(command.reason))
        member.health = _STARTING
        if reason is not c.Why.LOST_IN_CRASH:  # the driver died, and no member failed
            self.restarts[command.role] += 1

    def _on_resize(self, command: c.Resize) -> None:
        self.member(REPLICA, command.replica).health = _STARTING

    def _on_stop(self, command: c.Stop) -> None:
        member = self.member(command.role, command.id)
        if command.reason.why in c.SUSPICIONS:
            self._lose(member)
            self._fault(member, why(command.reason))
        elif "left" not in command.reason.numbers:  # else it is down, and given up
            member.health = _STOPPING

    def _on_resumed(self, event: c.Resumed) -> None:
        """The driver died, and every process with it."""
        self.failure, self.finished = None, False
        self._all_anew()
        if event.replicas is not None:  # the first so many stay
            for key in [key for key in self.members if key[0] == REPLICA][event.replicas :]:
                del self.members[key]

    def _all_anew(self) -> None:
        """Every process is new, and the store will say what it holds."""
        self.recovering = True
        for key, member in list(self.members.items()):
            self._lose(member)
            if member.health is _STOPPING:
                del self.members[key]
            elif member.health is not _DOWN:
                member.health = _STARTING

    def _lose(self, member: PastMember) -> None:
        """What a member alone knew is gone."""
        if member.role == TRAINER:
            self.making, self.parts = None, 0
        for name, known in member.holds.items():
            if known.replica == member.id:
                known.replica, self.pending[name] = None, known
        member.lose()

    def _fault(self, member: PastMember, reason: str) -> None:
        member.health = _DOWN
        self.faults.append(Outage(self.now, member.role, member.id, reason))
        self._down[member.role, member.id] = self.faults[-1]

    def _on_finish(self, _: c.Finish) -> None:
        self.finished = True

    def _on_fail(self, command: c.Fail) -> None:
        self.failure = command.reason
