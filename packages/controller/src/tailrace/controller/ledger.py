"""The ledger: owns the state of every trajectory and group.

    PENDING ──route──► RUNNING ──finish──► DONE ──score──► SCORED
       ▲                  │ interrupt, replica down, or a turn of several ends: IN_ENVIRONMENT until it is answered
       └──────────────────┘

    The driver died, or the task restarts:
    PENDING ──► DONE         the store has it complete
    any ──► PENDING          the store lacks it, or its group begins anew

    GENERATING ──all scored──► BUFFERED ──given to it──► TRAINING ──stepped──► TRAINED
         │                        │ ▲                       │                     │
         │                        │ └───── trainer down ────┴─────────────────────┘
         └───────────┬────────────┘
                     └──► FILTERED, FAILED, or DEFERRED while its prompt comes again

    BUFFERED ──► GENERATING  it begins anew

A pending trajectory waits in the pool (`pool.py`), or until the store has dropped its tokens (`discards.py`).
Invariants:

* Every admitted group ends as TRAINED, FILTERED, FAILED or DEFERRED exactly once. Otherwise prompts would be lost or trained
  on twice, and the reward curve would not show it.
* Nobody else changes a trajectory, a group or a count: every transition is a method here, and one that does not fit the state
  raises `ControllerError` and changes nothing. (Where a trajectory's keys and values are, `home` and `since`, is the fleet's.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from tailrace.contracts import Candidate, Launch, Pool, Predicted, Purpose, SessionOrigin, TrajectoryRef, TrajectoryView
from tailrace.controller.errors import ControllerError
from tailrace.controller.lengths import PredictedLengths, PromptLengths
from tailrace.controller.pool import Waiting
from tailrace.controller.trajectories import OPEN, Counts, GroupPhase, GroupState, Phase, TrajectoryState

# Looked up once, since access to an enum's members is slow and every trajectory passes each of these.
_PENDING: Final = Phase.PENDING
_RUNNING: Final = Phase.RUNNING
_IN_ENVIRONMENT: Final = Phase.IN_ENVIRONMENT
_DONE: Final = Phase.DONE
_SCORED: Final = Phase.SCORED
_TRAIN: Final = Purpose.TRAIN
_EVAL: Final = Purpose.EVAL
_AWAY = (_RUNNING, _IN_ENVIRONMENT)


@dataclass(slots=True)
class Ledger:
    """All trajectories and groups that are not settled. A trained group is settled once its checkpoint is durable.

    A trajectory has a state from the start of its group on. Before that all trajectories of a group are alike, and `unstarted`
    has the group of each. `moving` has the replica that each moves away from. `discarding` are those that start again once
    the store has dropped their tokens. `consumed` lists the groups of each version that training makes or made. `unfinished`
    counts trajectories by the version whose weights they still need.

    Args:
        mixes_versions: whether a trajectory may continue under newer weights.
        records: whether to record how well lengths were predicted.
    """

    mixes_versions: bool = False
    records: bool = False
    trajectories: dict[str, TrajectoryState] = field(default_factory=dict)
    groups: dict[int, GroupState] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)
    unstarted: dict[str, int] = field(default_factory=dict)
    moving: dict[str, str] = field(default_factory=dict)
    discarding: dict[str, None] = field(default_factory=dict)
    stranded_evaluations: dict[str, None] = field(default_factory=dict)
    buffered: dict[int, None] = field(default_factory=dict)
    consumed: dict[int, list[int]] = field(default_factory=dict)
    unfinished: dict[int, int] = field(default_factory=dict)
    predictions: PredictedLengths = field(default_factory=PredictedLengths)
    prompts: PromptLengths = field(default_factory=PromptLengths)
    _generating: int = 0
    counts: Counts = field(default_factory=Counts)

    # ---- the pool -------------------------------------------------------------------------------------------------

    @property
    def levels(self) -> Pool:
        """The pool by version: oldest first, trajectories without a version last."""
        return self.waiting.levels()

    @property
    def pooled(self) -> int:
        """Number of trajectories in the pool."""
        return len(self.waiting)

    @property
    def generating(self) -> int:
        """Number of groups that were admitted and are not complete."""
        return self._generating

    @property
    def started_groups(self) -> int:
        """Number of groups that have started and are not complete."""
        return self._generating - len(self.waiting.unstarted.groups)

    @property
    def pooled_started(self) -> int:
        """Number of started trajectories that wait for a replica, or for the store to drop their tokens."""
        return len(self.waiting.level_of) + len(self.discarding) + len(self.stranded_evaluations)

    def admit(self, launch: Launch) -> int:
        """Open a group with pending trajectories. Returns its number."""
        group = self.counts.admitted
        members = tuple([f"{group}.{sample}" for sample in range(launch.samples)])
        self.groups[group] = GroupState(
            group, members, launch.prompt, launch.needed, round=launch.round, kind=launch.kind, draw=launch.draw
        )
        self.waiting.unstarted.add(
            group, members, *self.predictions.of(launch.prompt, 0), self.prompts.of(launch.prompt)
        )
        self.unstarted.update(dict.fromkeys(members, group))
        self._generating += 1
        self.counts.admits(launch.prompt)
        return group

    def add(self, evaluation: TrajectoryState) -> None:
        """Add an evaluation's trajectory, which is routed at once."""
        self.trajectories[evaluation.id] = evaluation

    def get(self, trajectory: str) -> TrajectoryState | None:
        """The trajectory, or None when it is settled or unknown."""
        state = self.trajectories.get(trajectory)
        if state is None and (group := self.waits_with(trajectory)) is not None:
            return next((fresh for fresh in group.fresh() if fresh.id == trajectory), None)
        return state

    def expect_admitted(self, trajectory: str) -> None:
        """Check that a trajectory of which nothing is known is settled or dropped.

        Raises:
            ControllerError: there never was one of this name.
        """
        group = trajectory.partition(".")[0]
        if not trajectory.startswith("e") and not (group.isdecimal() and int(group) < self.counts.admitted):
            raise ControllerError(
                f"found trajectory {trajectory!r}, expected one of the {self.counts.admitted} groups that were admitted"
            )

    def waits_with(self, trajectory: str) -> GroupState | None:
        """The group with which a trajectory waits to start; None if it has started, or is settled or unknown."""
        group = self.unstarted.get(trajectory)
        return None if group is None else self.groups[group]

    def started(self) -> dict[int, tuple[int, bool]]:
        """Groups that count for admission, each with its version and whether it is complete."""
        return {
            group.index: (group.version, group.phase is GroupPhase.BUFFERED)
            for group in self.groups.values()
            if group.version is not None and group.phase in OPEN
        }

    def start(self, group: GroupState, version: int) -> None:
        """Fix the version of a group whose first trajectory is about to be routed. Call `pool_rest` afterwards.

        Raises:
            ControllerError: the group has started already.
        """
        if group.version is not None:
            _contradiction(f"group {group.index}", f"of version {group.version}", "one that has not started")
        group.version, group.predicted = version, self.predictions.tokens.get(group.prompt)
        group.ranker = self.predictions.rankers.get(group.prompt, self.predictions.ranker)
        self.counts.unpredicted += len(group.members) * (group.predicted is None)
        self._leaves_unstarted(group)
        group.states = group.fresh()
        group.rewards = [None] * len(group.members)
        self.trajectories.update(zip(group.members, group.states, strict=True))

    def pool_rest(self, group: GroupState) -> None:
        """Put the trajectories of a group that has just started and were not routed with it into the pool, one by one."""
        for state in group.states:
            if state.phase is _PENDING:
                self._pend(state)

    def exact(self, state: TrajectoryState) -> bool:
        """Whether a trajectory can continue only under its own version."""
        return state.version is not None and (state.purpose is _EVAL or not self.mixes_versions)

    # ---- trajectories ---------------------------------------------------------------------------------------------

    def routed(self, states: Sequence[TrajectoryState], replica: str, version: int) -> list[TrajectoryRef]:
        """Route trajectories to a replica. Returns their references for the command.

        Raises:
            ControllerError: one is not pending, or the store is dropping its tokens.
        """
        refs: list[TrajectoryRef] = []
        mixes, news = self.mixes_versions, 0
        for state in states:
            if state.phase is not _PENDING or state.id in self.discarding:
                _contradiction(state.id, "being discarded" if state.phase is _PENDING else state.phase, _PENDING)
        for state in states:
            name, at = state.id, version
            self.waiting.remove(name)
            if mixes and state.purpose is _TRAIN:
                if state.version is not None and state.version != version:
                    self.counts.resumed_on_newer += 1
                    at = min(version, state.version)
            else:
                if state.version != version:
                    news += 1
                    if state.version is not None:
                        self.unfinished[state.version] -= 1
                        self.counts.regenerated_trajectories += 1
                        self.counts.turns_lost += state.keeps(0)
                if state.purpose is _EVAL:
                    self.stranded_evaluations.pop(name, None)
            state.phase, state.replica, state.version, state.under = _RUNNING, replica, at, version
            draw = self.groups[state.group].draw if state.purpose is _TRAIN else None
            refs.append(
                TrajectoryRef(
                    name, state.group, state.sample, state.purpose, state.mode, state.tokens, state.prompt, draw
                )
            )
        if news:
            self.unfinished[version] = self.unfinished.get(version, 0) + news
        return refs

    def view(self, state: TrajectoryState, generated: int = 0) -> TrajectoryView:
        """The policies' view of a running trajectory, which has probably `generated` tokens more than are known."""
        mixes = self.mixes_versions and state.purpose is _TRAIN
        version = self.groups[state.group].version if mixes else state.version
        known = state.generated + generated
        predicted: tuple[float | None, float | None]
        if state.purpose is _EVAL:  # a held-out problem, of which neither is asked
            predicted, prompt = (None, None), self.prompts.mean
        else:
            predicted, prompt = self.predictions.of(state.prompt, known), self.prompts.of(state.prompt)
        return TrajectoryView(state.id, state.group, version, prompt + state.tokens, not mixes, *predicted, prompt)

    def returned(self, trajectory: str, tokens: int | None) -> TrajectoryState:
        """Make a trajectory that left its replica, or its environment, unfinished pending again.

        Raises:
            ControllerError: it was not there.
        """
        state = self.trajectories[trajectory]
        _expect(state, *_AWAY)
        state.phase, state.replica = _PENDING, None
        if tokens is not None:
            state.tokens = tokens
        self._pend(state)
        return state

    def turn_ended(self, state: TrajectoryState, tokens: int) -> None:
        """Note that a turn of a running trajectory is complete, and that its environment has to answer.

        Raises:
            ControllerError: it does not run.
        """
        _expect(state, _RUNNING)
        state.phase, state.replica = _IN_ENVIRONMENT, None
        self.counts.turns += state.ends_turn(tokens)

    def answered(self, state: TrajectoryState, tokens: int, session: SessionOrigin | None) -> None:
        """Note that an environment has answered a turn: with that the trajectory has so many tokens.

        Raises:
            ControllerError: no environment has it, or it would have fewer tokens than before.
        """
        _expect(state, _IN_ENVIRONMENT)
        if tokens < state.tokens:
            raise ControllerError(
                f"found Turned({state.id}) with {tokens} tokens, expected at least the {state.tokens} that it had"
            )
        self.counts.sessions_restored += session is SessionOrigin.RESTORED
        self.counts.sessions_replayed += session is SessionOrigin.REPLAYED
        state.is_answered(tokens)

    def session_lost(self, trajectory: str) -> TrajectoryState:
        """Make a trajectory pending whose environment lost its session: its tokens are worth nothing. Returns it.

        Raises:
            ControllerError: no environment has it.
        """
        state = self.trajectories[trajectory]
        _expect(state, _IN_ENVIRONMENT)
        self.returned(trajectory, None)
        self.counts.sessions_lost += 1
        self.counts.regenerated_trajectories += 1
        return state

    def version_lost(self, version: int) -> list[TrajectoryState]:
        """The pending trajectories that only this version could continue, which nobody has any more; counted as regenerated."""
        waiting = [self.trajectories[name] for name in (*self.waiting.level_of, *self.stranded_evaluations)]
        lost = [state for state in waiting if self.exact(state) and state.version == version]
        self.counts.regenerated_trajectories += len(lost)
        return lost

    def relocated(self, names: Iterable[str]) -> tuple[str, ...]:
        """Note that running trajectories are relocated. Returns those known to have made a token since they last were.

        Others might be prefilled again and again.

        Raises:
            ControllerError: one does not run.
        """
        states = [self.trajectories[name] for name in names]
        for state in states:
            _expect(state, _RUNNING)
        found = [state for state in states if state.relocated_at != state.tokens]
        for state in found:
            state.relocated_at = state.tokens
        return tuple([state.id for state in found])

    def discarding_begins(self, state: TrajectoryState) -> None:
        """Take a pending trajectory out of the pool until its tokens are dropped.

        Raises:
            ControllerError: it is not pending.
        """
        _expect(state, _PENDING)
        self.waiting.remove(state.id)
        self.stranded_evaluations.pop(state.id, None)
        self.discarding[state.id] = None

    def restarted(self, state: TrajectoryState, version: int | None = None, tokens: int = 0) -> None:
        """Make a trajectory pending, of this version and with so many tokens; by default it begins anew.

        Raises:
            ControllerError: it was dropped.
        """
        if self.trajectories.get(state.id) is not state:
            _contradiction(state.id, "not in the ledger", "one that was not dropped")
        self.waiting.remove(state.id)
        self.discarding.pop(state.id, None)
        if state.phase is not _DONE and state.phase is not _SCORED:
            self._needed(state, -1)
        self.counts.turns_lost += state.keeps(tokens)
        state.phase, state.replica, state.home, state.version = _PENDING, None, None, version
        state.cached.clear()  # it may get other tokens now
        self._needed(state, 1)
        self._pend(state)

    def bind(self, trajectory: TrajectoryState, destination: str | None) -> None:
        """Set the replica that a running trajectory moves to; None cancels the move.

        Raises:
            ControllerError: it does not run, or moves already.
        """
        if destination is not None and (trajectory.phase is not _RUNNING or trajectory.destination is not None):
            bound = "" if trajectory.destination is None else f" and moves to {trajectory.destination}"
            _contradiction(trajectory.id, f"{trajectory.phase}{bound}", f"{_RUNNING} and bound for none")
        trajectory.destination = destination
        if destination is None:
            self.moving.pop(trajectory.id, None)
        else:
            self.moving[trajectory.id] = trajectory.replica or ""

    def finished(self, state: TrajectoryState, tokens: int, trainer_version: int, *, truncated: bool = False) -> bool:
        """Mark a trajectory as complete. Returns False if it was complete already.

        Args:
            tokens: response tokens.
            trainer_version: the trainer's version.
            truncated: whether a limit ended it.

        Raises:
            ControllerError: no replica has begun it.
        """
        phase = state.phase
        if phase is _DONE or phase is _SCORED:
            return False
        if state.version is None:
            _contradiction(state.id, "finished without a version", "one that was begun")
        if phase is _PENDING:
            self.waiting.remove(state.id)
            self.stranded_evaluations.pop(state.id, None)
            self.discarding.pop(state.id, None)
        if state.purpose is _EVAL or not self.mixes_versions:  # it needed its version, which a call would say for each
            self.unfinished[state.version] -= 1
        if state.purpose is _TRAIN:
            turns, counted = len(state.turns) + (phase is not _IN_ENVIRONMENT), self.counts.turns_of_each
            counted[turns] = counted.get(turns, 0) + 1
        state.phase, state.replica = _DONE, None
        state.tokens, state.completed_at, state.truncated = tokens, trainer_version, truncated
        return True

    def scored(self, state: TrajectoryState, reward: float) -> GroupState | None:
        """Store the reward of a finished trajectory. Returns its group; None for an evaluation.

        Raises:
            ControllerError: it is not finished, or has a reward already.
        """
        if state.phase is not _DONE:
            _contradiction(state.id, state.phase, _DONE)
        state.phase, state.reward = _SCORED, reward
        if state.purpose is _EVAL:
            return None
        group = self.groups[state.group]
        group.scored += 1
        group.rewards[state.sample] = reward
        group.tokens += state.tokens
        group.observed += state.observed
        version = state.version
        if version != group.version:
            assert version is not None
            group.newer = group.newer or {}
            group.newer[version] = group.newer.get(version, 0) + 1
        return group

    def scoring_failed(self, state: TrajectoryState) -> int:
        """Note that the verifier of a finished trajectory failed. Returns how often it has.

        Raises:
            ControllerError: it is not finished, or has a reward already.
        """
        _expect(state, _DONE)
        state.scoring_attempts += 1
        return state.scoring_attempts

    def never_scored(self, state: TrajectoryState, trainer_version: int) -> None:
        """End a held-out problem of which there is no response that could be scored.

        Raises:
            ControllerError: it is neither pending nor finished.
        """
        _expect(state, _PENDING, _DONE)
        self.finished(state, 0, trainer_version)
        state.phase = _SCORED

    def settle_eval(self, ids: Iterable[str]) -> None:
        """Forget evaluation trajectories."""
        for name in ids:
            state = self.trajectories.get(name)
            if state is not None:
                self._forget(state)

    # ---- groups ---------------------------------------------------------------------------------------------------

    def late(self, group: GroupState) -> list[TrajectoryState]:
        """A group's trajectories that it does not need, since as many as it needs have finished generating."""
        if len(group.members) <= group.needed:
            return []
        late = [state for state in group.states if state.phase is not _DONE and state.phase is not _SCORED]
        return late if len(group.states) - len(late) >= group.needed else []

    def trim(self, group: GroupState, late: Sequence[TrajectoryState]) -> None:
        """Forget trajectories that a group does not need.

        Raises:
            ControllerError: the group would have fewer than it needs.
        """
        if len(group.states) - len(late) < group.needed:
            _contradiction(
                f"group {group.index}", f"left with {len(group.states) - len(late)}", f"{group.needed} samples"
            )
        gone = {state.id for state in late}
        group.states = [state for state in group.states if state.id not in gone]
        group.members = tuple([state.id for state in group.states])
        for state in late:
            self._forget(state)
        self.counts.surplus_trajectories += len(late)

    def complete(self, group: GroupState) -> Candidate:
        """Complete a group that has all its rewards. Returns its candidate.

        Raises:
            ControllerError: it is complete already, or has fewer rewards than it needs.
        """
        if group.phase is not GroupPhase.GENERATING or group.scored < group.needed:
            found = f"{group.phase} with {group.scored} rewards"
            _contradiction(f"group {group.index}", found, f"{GroupPhase.GENERATING} with {group.needed}")
        if self.records:
            self.predictions.record.completed(group)
        rewards = tuple([reward for reward in group.rewards if reward is not None])
        group.candidate = Candidate(group.index, min(group.versions()), self.counts.completed, rewards, group.tokens)
        self._buffer(group)
        self.counts.completed += 1
        self._generating -= 1
        return group.candidate

    def candidates(self) -> list[Candidate]:
        """Complete groups, in completion order."""
        found = [self.groups[index].candidate for index in self.buffered]
        return [candidate for candidate in found if candidate is not None]

    def consume(self, groups: Sequence[int], version: int) -> None:
        """Give groups to the batch that makes `version`, at once or in parts.

        Raises:
            ControllerError: one is not complete, or was given already.
        """
        for index in groups:
            if self.groups[index].phase is not GroupPhase.BUFFERED:
                _contradiction(f"group {index}", self.groups[index].phase, GroupPhase.BUFFERED)
        for index in groups:
            group = self.groups[index]
            del self.buffered[index]
            group.phase, group.consumed_for = GroupPhase.TRAINING, version
        self.consumed.setdefault(version, []).extend(groups)

    def batch(self, version: int) -> list[TrajectoryState]:
        """All trajectories consumed for a version so far, accumulated parts first."""
        return [state for index in self.consumed.get(version, ()) for state in self.groups[index].states]

    def trained(self, version: int) -> None:
        """Mark the groups of the step that made `version` as trained.

        Raises:
            ControllerError: one was trained on already.
        """
        for index in self.consumed.get(version, ()):
            if self.groups[index].phase is not GroupPhase.TRAINING:
                _contradiction(f"group {index}", self.groups[index].phase, GroupPhase.TRAINING)
        for index in self.consumed.get(version, ()):
            group = self.groups[index]
            group.phase = GroupPhase.TRAINED
            self.counts.trains(group, 1)
        if self.records:
            self.predictions.record.stepped(version, [self.groups[index] for index in self.consumed.get(version, ())])

    def roll_back(self, durable: int) -> None:
        """Put groups that were consumed for versions newer than a checkpoint back into the buffer."""
        undone = [version for version in self.consumed if version > durable]
        back = [self.groups[index] for version in undone for index in self.consumed.pop(version)]
        for group in sorted(back, key=_order):
            if group.phase is GroupPhase.TRAINED:
                self.counts.trains(group, -1)
            self._buffer(group)
        self.predictions.record.fell_back(durable)

    def settle(self, version: int) -> list[int]:
        """Settle the groups trained on up to a version, behind which the trainer can no longer fall back. Returns them."""
        ended: list[int] = []
        for made in [made for made in self.consumed if made <= version]:
            settled = [index for index in self.consumed[made] if self.groups[index].phase is GroupPhase.TRAINED]
            if len(settled) == len(self.consumed[made]):
                del self.consumed[made]
                for index in settled:
                    self.predictions.done(self.groups[index].prompt)
                    self.prompts.done(self.groups[index].prompt)
                    for name in self.groups.pop(index).members:
                        del self.trajectories[name]
                ended += settled
        return ended

    def start_over(self, group: GroupState, version: int) -> list[TrajectoryState]:
        """Have a group that has started begin anew, at `version` at least. Returns its trajectories, which are pending.

        Raises:
            ControllerError: it has not started, or was given to the trainer.
        """
        if group.version is None or group.phase not in OPEN:
            found = "not started" if group.version is None else group.phase
            _contradiction(f"group {group.index}", found, f"started and {' or '.join(OPEN)}")
        if group.phase is GroupPhase.BUFFERED:
            del self.buffered[group.index]
            group.phase, group.candidate, group.kept = GroupPhase.GENERATING, None, True
            self._generating += 1
        group.version = max(group.version, version)  # it starts again, with the weights of then
        group.scored = group.tokens = group.observed = 0
        group.rewards, group.newer = [None] * len(group.rewards), None
        for state in group.states:
            self.counts.regenerated_trajectories += state.version is not None
            self.restarted(state)
            state.reward, state.scoring_attempts, state.completed_at = None, 0, 0
        return group.states

    def fails_because(self, why: str, words: str) -> None:
        """Keep what was said of the first group that fails for a reason."""
        self.counts.failed_words.setdefault(why, words)

    def drop(self, index: int, phase: GroupPhase, reason: str, *, delayed: bool = False) -> list[TrajectoryState]:
        """End a group as FILTERED, FAILED or DEFERRED. Returns its trajectories, which are forgotten.

        Args:
            index: the group.
            phase: how it ends.
            reason: why, for the counts.
            delayed: whether training waited for it.

        Raises:
            ControllerError: it was given to the trainer.
        """
        if self.groups[index].phase not in OPEN:
            _contradiction(f"group {index}", self.groups[index].phase, " or ".join(OPEN))
        group = self.groups.pop(index)
        self.counts.delayed += delayed
        if group.phase is GroupPhase.GENERATING:
            self._generating -= 1
        self.buffered.pop(index, None)
        self.counts.ends(group, phase, reason)
        if phase is not GroupPhase.DEFERRED:
            self.predictions.done(group.prompt)
            self.prompts.done(group.prompt)
        if group.version is None:
            self._leaves_unstarted(group)
            return group.fresh()
        for state in group.states:
            self._forget(state)
        return group.states

    def versions_needed(self) -> list[int]:
        """Versions whose weights an unfinished trajectory still needs, oldest first."""
        self.unfinished = {version: count for version, count in self.unfinished.items() if count}
        return sorted(self.unfinished)

    # ---- lengths --------------------------------------------------------------------------------------------------

    def predictions_are_old(self) -> None:
        """Note that the ranker has learned anew: predictions of groups that have not started are asked for again."""
        self.predictions.learned_anew({group.prompt for group in self.groups.values() if group.version is not None})

    def predicted(self, events: Mapping[int, Predicted]) -> set[str]:
        """Take in what is predicted, by prompt. Returns the replicas whose views of trajectories are older than that."""
        found = [group for group in self.groups.values() if group.prompt in events]
        wanted = self.predictions.asked.keys() | {group.prompt for group in found}
        for prompt, event in events.items():
            if prompt in wanted:
                self.predictions.predict(event)
        replicas: set[str] = set()
        for group in found:
            if group.phase is not GroupPhase.GENERATING:
                continue
            if group.version is None:
                self.waiting.unstarted.predict(group.index, *self.predictions.of(group.prompt, 0))
            for state in group.states:
                self.waiting.predict(state.id, *self.predictions.of(group.prompt, state.generated))
                if state.replica is not None:
                    replicas.add(state.replica)
        return replicas

    def measured(self, tokens: Mapping[int, int]) -> set[str]:
        """Take in the tokens of prompts. Returns the replicas whose views of trajectories are older than that."""
        self.prompts.measured += len(tokens)
        self.prompts.total += sum(tokens.values())
        found = [group for group in self.groups.values() if group.prompt in tokens]
        wanted = self.prompts.asked.keys() | {group.prompt for group in found}
        for prompt, length in tokens.items():
            if prompt in wanted:
                self.prompts.tokens[prompt] = length
            self.prompts.asked.pop(prompt, None)
        replicas: set[str] = set()
        for group in found:
            if group.version is None:
                self.waiting.unstarted.measure(group.index, tokens[group.prompt])
            for state in group.states:
                self.waiting.measure(state.id, tokens[group.prompt], state.tokens)
                if state.replica is not None:
                    replicas.add(state.replica)
        return replicas

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _leaves_unstarted(self, group: GroupState) -> None:
        self.waiting.unstarted.remove(group.index)
        for name in group.members:
            del self.unstarted[name]

    def _pend(self, state: TrajectoryState) -> None:
        if state.purpose is _EVAL:
            self.stranded_evaluations[state.id] = None
            return
        version = self.groups[state.group].version
        if version is None:
            return  # its group waits as a whole
        if exact := self.exact(state):
            assert state.version is not None
            version = state.version
        predicted = self.predictions.of(state.prompt, state.generated)
        prompt = self.prompts.of(state.prompt)
        view = TrajectoryView(state.id, state.group, version, prompt + state.tokens, exact, *predicted, prompt)
        self.waiting.add(version, view)

    def _needed(self, state: TrajectoryState, count: int) -> None:
        """Count that an unfinished trajectory needs its version (count 1) or no longer does (-1)."""
        if self.exact(state):
            assert state.version is not None
            self.unfinished[state.version] = self.unfinished.get(state.version, 0) + count

    def _buffer(self, group: GroupState) -> None:
        group.phase, group.consumed_for = GroupPhase.BUFFERED, 0
        self.buffered[group.index] = None

    def _forget(self, state: TrajectoryState) -> None:
        del self.trajectories[state.id]
        if state.phase is not _DONE and state.phase is not _SCORED:
            self.waiting.remove(state.id)
            self.stranded_evaluations.pop(state.id, None)
            self.discarding.pop(state.id, None)
            self._needed(state, -1)
        if state.destination is not None:
            self.moving.pop(state.id, None)


def _expect(state: TrajectoryState, *phases: Phase) -> None:
    if state.phase not in phases:
        _contradiction(state.id, state.phase, " or ".join(phases))


def _contradiction(who: str, found: str, expected: str) -> NoReturn:
    raise ControllerError(f"{who} is {found}, expected {expected}")


def _order(group: GroupState) -> int:
    assert group.candidate is not None
    return group.candidate.order
