"""Invariants 1 and 2: what is trained on is within the bound, complete, scored, and trained on exactly once.

An account of its own, from commands and events alone: `Step` and `Accumulate` order training, `Stepped` does it, `Abort` drops,
and a trainer or driver that comes back from a checkpoint undoes what came after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec
from tailrace.fleetsim.fleet.quantities import samples
from tailrace.fuzz.case import Case
from tailrace.fuzz.checks.data_plane import TOKENS, DataPlane
from tailrace.fuzz.errors import InvariantError
from tailrace.runtime.executor.deployment import TRAINER

_DONE = {c.Why.NO_SIGNAL, c.Why.NOT_SCORED, c.Why.REFUSED, c.Why.UNANSWERED}
BOUND, ONCE = "the bound holds", "everything admitted ends exactly once"


class Training:
    """What became of every trajectory for training.

    Args:
        case: what runs.
        spec: its policies, which say what they promise.
        plane: knows what really generated a trajectory.
    """

    def __init__(self, case: Case, spec: PipelineSpec, plane: DataPlane) -> None:
        self._case, self._plane = case, plane
        self._bound = spec.admission.gate(spec.batch_groups).bound
        self._samples = samples(spec)
        self._needed = case.pipeline.samples_per_prompt
        self._rounds = spec.batching.open().launches_rounds()
        self._filters = bool(case.pipeline.batching.options.get("filter_equal_rewards", False))
        self.rewards: dict[str, float] = {}
        self.broken: dict[str, int] = {}
        self.refused: set[str] = set()
        self.unanswered: set[str] = set()
        self.ordered: dict[int, list[str]] = {}
        self.trained: dict[str, int] = {}
        self.dropped: set[str] = set()
        self.ended: set[int] = set()  # groups that end their prompt, untrained
        self.postponed = 0  # groups whose prompt comes again, since no verifier scored it
        self.lags: dict[int, int] = {}
        self.updates: dict[
            int, bool
        ] = {}  # by the version of a batch that was begun: whether each part is an optimizer step
        self._adding: dict[int, int] = {}  # cells at work, by the command's number
        self.undone = 0
        self._groups: dict[str, int] = {}
        self._prompts: dict[int, int] = {}  # of each group
        self._evaluations: set[str] = set()

    # ---- events ---------------------------------------------------------------------------------------------------

    def scored(self, event: c.Scored) -> None:
        """A reward arrived."""
        self.rewards.setdefault(event.trajectory, event.reward)

    def scoring_failed(self, event: c.ScoringFailed) -> None:
        """A verifier broke."""
        self.broken[event.trajectory] = self.broken.get(event.trajectory, 0) + 1

    def refuses(self, event: c.Refused) -> None:
        """An engine refused a prompt."""
        self.refused.add(event.trajectory.partition(".")[0])

    def call_failed(self, event: c.CallFailed) -> None:
        """An environment did not answer a turn."""
        if not event.lost:
            self.unanswered.add(event.trajectory.partition(".")[0])

    def stepped(self, event: c.Stepped) -> None:
        """A batch is trained on."""
        self.updates.pop(event.version, None)
        for name in self.ordered.pop(event.version, ()):
            self.trained[name] = event.version

    def accumulated(self, event: c.Accumulated) -> None:
        """A part of a batch is trained on."""
        cell = self._adding.pop(event.answers, None) if event.answers is not None else None
        if cell != event.cell:
            raise InvariantError(
                ONCE, f"gradients of cell {event.cell} were added for {event.answers}, expected of {cell}"
            )

    def up(self, event: c.Up) -> None:
        """A trainer that comes back has forgotten what its checkpoint does not hold."""
        if event.role == TRAINER:
            self._undo(event.version or 0)

    def resumed(self, event: c.Resumed) -> None:
        """The driver came back; its trainer comes up with a checkpoint."""
        del event
        self._forget()

    def _forget(self) -> None:
        self.ordered.clear()
        self.updates.clear()
        self._adding.clear()

    def _undo(self, durable: int) -> None:
        self._forget()
        kept = {name: version for name, version in self.trained.items() if version <= durable}
        self.undone += len(self.trained) - len(kept)
        self.trained = kept

    # ---- commands -------------------------------------------------------------------------------------------------

    def accumulate(self, command: c.Accumulate, controller: Controller) -> None:
        """A part of a batch is to be trained on."""
        if self.updates.setdefault(command.version, command.update) != command.update:
            raise InvariantError(
                ONCE, f"version {command.version} is made of gradients that are added and of optimizer steps"
            )
        if command.update == (command.cell is not None):
            raise InvariantError(ONCE, f"cell {command.cell} is given a part with update={command.update}")
        if command.cell is not None:
            if not 0 <= command.cell < self._case.cells or command.cell in self._adding.values():
                raise InvariantError(
                    ONCE, f"cell {command.cell} of {self._case.cells} is given work, beside {self._adding}"
                )
            self._adding[command.seq] = command.cell
        self._whole(command.trajectories)
        self._order(command.version, command.trajectories, controller)

    def step(self, command: c.Step, controller: Controller) -> None:
        """A batch is to be trained on, as far as it was not accumulated."""
        if self._adding:
            raise InvariantError(
                ONCE, f"version {command.version} is to be made while cells still add gradients: {self._adding}"
            )
        if not self.updates.get(command.version, True) and len(command.mini_batches) > 1:
            raise InvariantError(ONCE, f"{len(command.mini_batches)} optimizer steps on gradients that were added")
        self._order(command.version, [name for part in command.mini_batches for name in part], controller)
        batch = self.ordered[command.version]
        members: dict[int, list[str]] = {}
        for name in batch:
            members.setdefault(self._groups[name], []).append(name)
        groups = self._case.pipeline.prompts_per_step
        # A round is smaller if an epoch ends, or if the trainer fell back and some of it was too old.
        right = 1 <= len(members) <= groups if self._rounds else len(members) == groups
        if not right or any(len(each) != self._needed for each in members.values()):
            found = {group: len(each) for group, each in members.items()}
            raise InvariantError(
                ONCE, f"a batch of {found} trajectories by group, expected {groups} groups of {self._needed}"
            )
        prompts = [self._prompts[group] for group in members]
        before = {self._prompts[self._groups[name]] for name in self.trained}
        if len(set(prompts)) < len(prompts) or before & set(prompts):
            raise InvariantError(
                ONCE, f"prompts {sorted(prompts)!r:.120} are in one batch, and one was trained on before"
            )
        if self._filters:
            for group, each in members.items():
                if len({self.rewards[name] for name in each}) == 1:
                    raise InvariantError(ONCE, f"group {group} has one reward throughout, expected it to be filtered")

    def _whole(self, names: Iterable[str]) -> None:
        """Advantages need all of a group, so a part of a batch has whole ones."""
        members: dict[int, int] = {}
        for name in names:
            members[self._groups[name]] = members.get(self._groups[name], 0) + 1
        if any(count != self._needed for count in members.values()):
            raise InvariantError(
                ONCE, f"a part of a batch has {members} trajectories by group, expected {self._needed}"
            )

    def _order(self, version: int, names: Iterable[str], controller: Controller) -> None:
        before = self.ordered.setdefault(version, [])
        taken = {name for batch in self.ordered.values() for name in batch}
        for name in names:
            if name in self.trained or name in taken:
                raise InvariantError(ONCE, f"{name} is trained on twice: again for version {version}")
            taken.add(name)
            self._check(name, version, controller)
            before.append(name)

    def _check(self, name: str, version: int, controller: Controller) -> None:
        plane, state = self._plane, controller.ledger.get(name)
        if name in self.dropped:
            raise InvariantError(ONCE, f"{name} is trained on though it was dropped")
        if name not in plane.complete:
            raise InvariantError(ONCE, f"{name} is trained on before it is complete")
        if name not in self.rewards:
            raise InvariantError(
                ONCE, f"{name} is trained on without a reward; its verifier broke {self.broken.get(name, 0)} times"
            )
        if state is None or state.reward != self.rewards[name]:
            found = None if state is None else state.reward
            raise InvariantError(ONCE, f"{name} is trained on with reward {found}, expected {self.rewards[name]}")
        oldest = plane.oldest(name)
        lag = version - 1 - oldest
        self.lags[lag] = self.lags.get(lag, 0) + 1
        if self._bound is not None and lag > self._bound:
            raise InvariantError(
                BOUND,
                f"{name} of version {oldest} is trained on for version {version}: a staleness of {lag}, "
                f"expected at most {self._bound}",
            )
        if state.version is None or state.version > oldest:
            raise InvariantError(
                TOKENS, f"the controller takes {name} for version {state.version}, but it is of {oldest}"
            )

    def abort(self, command: c.Abort, controller: Controller) -> None:
        """Trajectories are dropped; those that the controller still knows begin anew."""
        if command.reason.why is c.Why.TASK_RESTART:
            self._start_over(command.trajectories)
        ordered = {name for batch in self.ordered.values() for name in batch}
        if command.reason.why in _DONE:
            self.ended |= {int(name.partition(".")[0]) for name in command.trajectories}
        self.postponed += command.reason.why is c.Why.NOT_SCORED_YET
        for name in command.trajectories:
            if name in self.trained or name in ordered:
                raise InvariantError(ONCE, f"{name} is dropped though it was trained on")
            if name not in self._evaluations and controller.ledger.get(name) is None:
                self.dropped.add(name)

    def _start_over(self, names: Iterable[str]) -> None:
        """The task starts over: what was done with trajectories since the checkpoint did not happen."""
        gone = set(names)
        self.undone += len(gone & set(self.trained))
        self.trained = {name: version for name, version in self.trained.items() if name not in gone}
        self.ordered = {version: [n for n in batch if n not in gone] for version, batch in self.ordered.items()}
        for name in gone:
            self.rewards.pop(name, None)

    def route(self, command: c.Route) -> None:
        """What is dropped or trained on does not run again."""
        for ref in command.trajectories:
            if ref.purpose is c.Purpose.EVAL:
                self._evaluations.add(ref.trajectory)
            else:
                self._groups[ref.trajectory] = ref.group
                self._prompts[ref.group] = ref.prompt
            if ref.trajectory in self.dropped or ref.trajectory in self.trained:
                raise InvariantError(ONCE, f"{ref.trajectory} is routed to {command.replica} after its end")

    # ---- the end --------------------------------------------------------------------------------------------------

    def finished(self, controller: Controller) -> None:
        """The run is complete: every group that was admitted was trained on or dropped, whole."""
        counts, pipeline = controller.ledger.counts, self._case.pipeline
        if self._rounds:
            self._all_prompts(controller)
        names = {f"{group}.{sample}" for group in range(counts.admitted) for sample in range(self._samples)}
        if self._rounds:  # a long round launches fewer samples
            names = self._groups.keys() | self.dropped
        lost = sorted(names - self.trained.keys() - self.dropped)
        both = sorted(self.dropped & self.trained.keys())
        strange = sorted((self.trained.keys() | self.dropped) - names)
        if lost or both or strange:
            raise InvariantError(ONCE, f"at the end {lost} are lost, {both} trained on and dropped, {strange} unknown")
        expected = controller.view.steps * pipeline.prompts_per_step
        if self._rounds:
            expected = len({self._groups[name] for name in self.trained})
        if len(self.trained) != expected * self._needed or counts.trained != expected:
            raise InvariantError(
                ONCE,
                f"{len(self.trained)} trajectories and {counts.trained} groups were trained on, expected "
                f"{expected * self._needed} and {expected}",
            )
        if counts.admitted != counts.trained + counts.filtered + counts.failed + counts.deferred:
            raise InvariantError(
                ONCE,
                f"{counts.admitted} groups were admitted, expected {counts.trained} trained on + {counts.filtered} "
                f"filtered + {counts.failed} failed + {counts.deferred} deferred",
            )
        why = (c.Why.NOT_SCORED, c.Why.REFUSED, c.Why.UNANSWERED)
        unscored, refused, unanswered = (counts.failed_because.get(each, 0) for each in why)
        if (
            ((unscored or self.postponed) and not self.broken)
            or refused > len(self.refused)
            or unanswered > len(self.unanswered)
            or unscored + refused + unanswered != counts.failed
        ):
            raise InvariantError(
                ONCE,
                f"{unscored} groups failed unscored, {refused} refused and {unanswered} unanswered, but {len(self.broken)} "
                f"verifiers broke, {len(self.refused)} groups were refused and {len(self.unanswered)} calls failed",
            )

    def _all_prompts(self, controller: Controller) -> None:
        """Every prompt that ran was trained on, or ended for good without, or waits to come again: one of the three."""
        trained = {self._prompts[self._groups[name]] for name in self.trained}
        state = controller.source.state()
        # the open round defers these when it closes
        deferred = {prompt for prompt, at in state["rounds"]["members"] if at == "surplus"}
        waiting = {*state["rounds"]["queue"], *state["pending"], *deferred}
        done = {self._prompts[group] for group in self.ended if group in self._prompts}
        lost = set(self._prompts.values()) - trained - waiting - done
        twice = (trained & waiting) | (trained & done) | (waiting & done)
        if lost or twice:
            raise InvariantError(ONCE, f"prompts {sorted(lost)} are lost, and {sorted(twice)} end more than once")
        filtered = controller.ledger.counts.filtered_because
        if set(filtered) - {c.Why.NO_SIGNAL}:
            raise InvariantError(
                ONCE, f"groups were filtered because of {dict(filtered)}, expected their prompts to come again"
            )
