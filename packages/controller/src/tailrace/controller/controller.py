"""The controller: every decision of a pipeline, as a pure function of the events so far.

    events ──► handle_all(events, now) ──► commands     no I/O, no clock, no randomness, no threads

    consumes    Snapshot Finished Refused Interrupted Pulled Published Stepped Scored Up Down Tick ...
    waits for   a replica that is up, a version that is published, a batch that is complete, a trainer that is idle
    unblocked   by Up, by Published, by Scored, by Stepped; a member that never answers is reported Down by the executor

The controller first updates its state from all events of one instant. Then it decides in this order: training, devices, one
cycle of the rollout coordinator, the end of the run.
The same calls with the same events give the same commands, byte for byte. So replaying the log rebuilds the controller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, cast, get_args

from tailrace import contracts as c
from tailrace.controller.batches import Batches
from tailrace.controller.coordinator import Coordinator
from tailrace.controller.environments import Environments
from tailrace.controller.errors import ControllerError
from tailrace.controller.groups import Groups
from tailrace.controller.lending import Lending
from tailrace.controller.length_requests import LengthRequests
from tailrace.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER
from tailrace.controller.plugin_faults import blame, policies_of
from tailrace.controller.provisioning import Provisioning
from tailrace.controller.provisioning_history import RoundHistory
from tailrace.controller.recovery.detection import Detection
from tailrace.controller.recovery.failed_groups import FailedGroups
from tailrace.controller.recovery.failures import Failures
from tailrace.controller.recovery.fall_back import FallBack
from tailrace.controller.recovery.losses import survived
from tailrace.controller.recovery.task_restart import TaskRestart
from tailrace.controller.refill import Refill
from tailrace.controller.responses import Responses
from tailrace.controller.rounds import Rounds
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.state import Brought, State
from tailrace.controller.trajectories import GroupPhase
from tailrace.controller.view import RunView
from tailrace.controller.weights import Weights
from tailrace.repack import OnlineFit

_EVENTS = frozenset(get_args(c.Event))


class Controller:
    """Turns events into commands.

    Args:
        spec: the pipeline.
        relays: relays to start, one per machine.
        first_version: the version that the trainer holds at the start.
    """

    def __init__(self, spec: PipelineSpec, *, relays: int = 1, first_version: int = 0) -> None:
        self.relays = relays
        state = self.owned = State(spec, first_version)
        self.ledger, self.members, self.fleet, self.trainer = state.ledger, state.members, state.fleet, state.trainer
        self.gate, self.source, self.outbox, self.evaluations = (
            state.gate, state.source, state.outbox, state.evaluations,
        )  # fmt: skip
        self.sessions, self.discards, self.scoring = state.sessions, state.discards, state.scoring
        self.rounds = Rounds(state)
        self.refill = Refill(state, self.rounds)
        self.predictions = LengthRequests(state, self.refill)
        self.coordinator = Coordinator(state, self.refill)
        self.environments = Environments(state)
        self.weights = Weights(state)
        self.batches = Batches(state, self.rounds)
        self.groups = Groups(state, self.rounds)
        self.lending = Lending(state, self.batches)
        self.round_history = RoundHistory(state, self.rounds)
        self.provisioning = Provisioning(state, self.round_history, self.lending)
        self.responses = Responses(state, self.environments, self.groups, self.provisioning)
        self.failures = Failures(state)
        self.detection = Detection(state, self.failures)
        self.fall_back = FallBack(state, self.rounds, self.batches, self.groups)
        self.task_restart = TaskRestart(state, self.failures, self.provisioning, self.fall_back)
        self.failed_groups = FailedGroups(state, self.groups)
        self.costs = OnlineFit() if spec.fits_costs and _learns_costs(spec) else None
        self.started = False
        self.finished = False
        self.delayed_since: float | None = None  # training waits for groups in whose places others could be trained on
        self.recovering = False  # the driver died or the task restarts, and the store has not reported its content yet
        self.view = RunView(self)
        self._handlers: dict[type, Callable[[Any], None]] = {
            c.Snapshot: self._on_snapshot,
            c.TurnEnded: self.environments.turn_ended,
            c.Turned: self.responses.turned,
            c.CallFailed: self.failed_groups.call_failed,
            c.Interrupted: self.responses.interrupted,
            c.Pulled: self.weights.pulled,
            c.PullFailed: lambda event: (self.failures if event.differs else self.weights).pull_failed(event),
            c.Lent: self.lending.left,
            c.Returned: self.lending.came_back,
            c.Offloaded: self.trainer.has_left,
            c.Published: self.weights.was_published,
            c.Durable: self._on_durable,
            c.ScoringFailed: self.failed_groups.scoring_failed,
            c.Refused: self.failed_groups.refused,
            c.PredictionFailed: self.predictions.failed,
            c.Measured: self.predictions.measured,
            c.Accumulated: self._on_accumulated,
            c.Stepped: self._on_stepped,
            c.Discarded: self.discards.done,
            c.Down: self._on_down,
            c.Up: self._on_up,
            c.Activity: self._on_activity,
            c.Silent: self.detection.silent,
            c.Tick: lambda _: self.detection.tick(),
            c.Resumed: self._on_resumed,
            c.Attached: self.detection.attached,
        }

    def handle(self, event: c.Event, now: float) -> list[c.Command]:
        """The commands that follow from one event; see `handle_all`."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Sequence[c.Event], now: float) -> list[c.Command]:
        """The commands that follow from events that arrived together, decided over all of them at once.

        The coordinator runs one cycle if any event calls for it; all trajectories to score go out as one `Score`. Events after
        one that ends the run are ignored. A policy that raises, or gives an answer that its contract forbids, ends the run,
        which can then be resumed.

        Args:
            events: the events, in order of arrival.
            now: seconds on the run's clock, never decreasing.

        Raises:
            ControllerError: an event contradicts the state, or the time is no number.
        """
        self.owned.brought = Brought()
        if self.over and not any(self._goes_on(one) for one in events):
            return []
        if not math.isfinite(now):
            raise ControllerError(f"found now={now!r}, expected seconds on the run's clock")
        self.owned.now = now
        self.provisioning.iterations.passed()
        try:
            if not self.started:
                self._start()
            goes_on = self._take_in(events)
            if goes_on and self.task_restart.carry_out():
                self.recovering = True
            if goes_on and not self.recovering:
                self.scoring.send()
                self._decide({*map(type, events), *self.failures.took()})
        except Exception as error:
            line = blame(error, policies_of(self.spec, self.gate, self.source))
            if line is None:
                raise
            self.owned.fail(line)
        return self.outbox.take()

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline, whose policies plan with the costs that the run has fitted."""
        return self.owned.spec

    @property
    def failure(self) -> str | None:
        """Why the run failed; None if it did not."""
        return self.owned.failure

    @property
    def over(self) -> bool:
        """Whether the run has finished or failed."""
        return self.finished or self.failure is not None

    def state(self) -> dict[str, Any]:
        """The whole state as plain data, for comparison."""
        parts = {
            "controller": self,
            "coordinator": self.coordinator,
            "plan": self.provisioning,
            "iterations": self.provisioning.iterations,
            "failed groups": self.failed_groups,
            "predictions": self.predictions,
            "detection": self.detection,
            "failures": self.failures,
        }
        fit = self.costs
        costs = None if fit is None else (fit.seen, fit.every, fit.due_at, list(fit.samples), fit.last)
        own = {"environments": self.environments.plain(), "troubles": asdict(self.failures.troubles), "costs": costs}
        return {**self.owned.plain(parts), **own}

    # ---- events ---------------------------------------------------------------------------------------------------

    def _take_in(self, events: Sequence[c.Event]) -> bool:
        """Update the state from events. Returns whether the run continues."""
        for kind, alike in groupby(events, type):
            if kind is c.Finished:
                self.responses.finished(cast("Iterator[c.Finished]", alike))
            elif kind is c.Scored:
                self.responses.scored(cast("Iterator[c.Scored]", alike))
            elif kind is c.Predicted:
                self.predictions.predicted(cast("Iterator[c.Predicted]", alike))
            else:
                handler = self._handlers.get(kind)
                if handler is None:
                    if kind not in _EVENTS:
                        raise ControllerError(f"found {next(alike)!r:.200}, expected an event of tailrace.contracts")
                    continue
                for event in alike:
                    handler(event)
                    if self.owned.failure is not None:
                        return False
        return True

    def _start(self) -> None:
        self.started, self.coordinator.last_plan_s = True, self.owned.now
        ranker = ((RANKER, "0"),) if self.spec.ranker else ()
        relays = ((RELAY, str(i)) for i in range(self.relays))
        environments = ((ENVIRONMENT, str(i)) for i in range(self.spec.environments))
        for role, id_ in ((DATA, "0"), (SCORER, "0"), *relays, (TRAINER, "0"), *ranker, *environments):
            member = self.members.add(role, id_, site=self.spec.relay_site(int(id_)) if role == RELAY else "")
            self.outbox.send(c.Start, role=role, id=id_, place=self.members.place(member))
        self.provisioning.plan()
        self.evaluations.at(self.trainer.version, 0, self.trainer.steps)

    def _on_snapshot(self, event: c.Snapshot) -> None:
        self.fleet.observed(event, self.owned.now)
        if self.costs is not None:
            self.costs.take(event)
            fitted = self.costs.refit()
            if fitted is not None and fitted.usable:
                self.owned.learn(fitted.model)

    def _on_up(self, event: c.Up) -> None:
        if event.role == TRAINER and event.version is not None:
            self.trainer.expect_checkpoint(event.version)
        member = self.members.came_up(event, self.owned.now)
        if member is None or not self.failures.came_up(member):
            return
        if crowded := self.members.crowded(member):
            self.owned.fail(crowded)
            return
        if event.role == TRAINER:
            self.trainer.came_up()
            self.fall_back.to(self.trainer.first if event.version is None else event.version)
            self.weights.publish()
            if self.trainer.steps and self.trainer.durable < self.trainer.version:
                self.weights.checkpoint()
            if (step := self.trainer.step) >= self.trainer.steps:  # a run may go on with no more than it has done
                self.evaluations.at(self.trainer.version, step, step)
        elif event.role == RELAY:
            self.weights.publish()
        elif event.role == SCORER:
            self.scoring.came_up()
        elif event.role == DATA:
            if self.recovering:
                self._on_recovered(event)
            else:
                self.discards.again()

    def _on_recovered(self, event: c.Up) -> None:
        """Take in what the store holds after the driver's death, and have it drop what begins anew."""
        resumes_at, self.recovering, self.failures.resumes_at = self.failures.resumes_at, False, None
        self.environments.forget()
        anew = survived(self.owned, event, resumes_at, self.responses.completed)
        self.discards.again()
        if anew:
            numbers = {"task_restarts": float(self.failures.troubles.task_restarts)}
            self.discards.begin_anew(anew, c.Reason(c.Why.TASK_RESTART, f"{event.role} {event.id}", numbers))
            if self.trainer.up:  # else its fall-back says so
                self.fall_back.readmit()

    def _on_down(self, event: c.Down) -> None:
        if self.costs is not None and event.role == REPLICA:
            self.costs.times.lost(event.id)
        self.failures.went_down(event)

    def _on_activity(self, event: c.Activity) -> None:
        if event.role == RANKER:
            self.predictions.learned(event)
        self.detection.heard(event)

    def _on_durable(self, event: c.Durable) -> None:
        oldest = self.trainer.became_durable(event.version, full=event.full, nbytes=event.nbytes)
        self.groups.settled(self.ledger.settle(oldest))
        self.weights.was_saved(event.version)

    def _on_accumulated(self, event: c.Accumulated) -> None:
        if not self.trainer.up:
            return  # it is lost since, and that with it
        cells = 1 if event.cell is None else self.spec.cells
        self.trainer.part_ended(event.version, event.cell, event.metrics.get("wall_s", 0.0) / cells)
        self.detection.trained()
        self._check_measured(event)

    def _check_measured(self, event: c.Accumulated | c.Stepped) -> None:
        """Compare the bound with the staleness that the trainer itself counted, from the versions of the tokens."""
        measured = event.metrics.get("staleness_max", 0)
        if self.gate.bound is not None and measured > self.gate.bound:
            self.owned.fail(
                f"the batch of version {event.version} had tokens of staleness {measured:.0f}, above the bound of "
                f"{self.gate.bound}: the trainer trained on other tokens than the controller admitted"
            )

    def _on_stepped(self, event: c.Stepped) -> None:
        trainer = self.trainer
        if not trainer.up:
            return  # it is lost since, and the step with it
        added_s = trainer.added_s
        trainer.stepped(event.version)
        self._check_measured(event)
        self.failures.stepped(trainer.step - 1)
        self.provisioning.stepped(event.metrics.get("wall_s", 0.0), added_s)
        self.ledger.trained(event.version)
        self.weights.publish()
        every, last = self.spec.checkpoint_every, trainer.step >= self.trainer.steps
        if trainer.step % every == 0 or last:
            self.weights.checkpoint(full=last or trainer.step % (every * self.spec.full_checkpoint_every) == 0)
        self.evaluations.at(trainer.version, trainer.step, self.trainer.steps)

    def _goes_on(self, event: c.Event) -> bool:
        return type(event) is c.Resumed and not (self.finished and event.steps is None)

    def _on_resumed(self, event: c.Resumed) -> None:
        """Go on after the driver died: every process is new."""
        if self.owned.failure is not None:  # what it failed for may be mended
            self.failed_groups.begin_anew()
        self.owned.failure, self.finished, self.recovering = None, False, True
        if self.costs is not None:
            self.costs.times.before.clear()
        self.task_restart.resume(event)

    # ---- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, kinds: set[type]) -> None:
        """Take all decisions after events of these kinds."""
        if self.lending.yields:
            self._settle_batches()
            if self.lending.look():
                self.provisioning.plan()
        self.lending.go_on()
        self._train()
        if self.round_history.look() or not kinds.isdisjoint((c.Stepped, c.Up, c.Down, c.Returned)):
            self.provisioning.plan()
        self.provisioning.go_on()
        self.environments.go_on()
        if self.groups.freed or self.environments.homeless or self.coordinator.due(kinds):
            self.groups.freed = False
            self.coordinator.run()
            if self.batches.held:
                self._train()
        self.lending.give_way()
        self.failures.go_on()
        self.sessions.send()
        if not self.trainer.done:
            self.predictions.ask()
        if self.trainer.done:
            self._end()

    def _end(self) -> None:
        """End the run after its last batch: drop surplus groups, and finish once nothing is under way."""
        for group in [group.index for group in self.ledger.groups.values() if group.phase is not GroupPhase.TRAINED]:
            self.groups.drop(group, c.GroupEnd.SURPLUS, c.Reason(c.Why.OVER))
        durable = not self.trainer.steps or self.trainer.durable >= self.trainer.version
        if durable and self.evaluations.idle and not self.discards.pending:
            self.groups.over()
            self.finished = True
            self.outbox.send(c.Finish)

    def _train(self) -> None:
        if self._settle_batches():
            self.groups.freed |= self.batches.give()

    def _settle_batches(self) -> bool:
        """Drop what no batch takes. Returns whether the trainer is free for one."""
        self.groups.drop_surplus()
        self.rounds.tell()
        if not self.batches.wanted:
            self.delayed_since = None
            return False
        if expired := self.gate.expired():
            for index in self.groups.named("admission gate", self.gate, "expired", expired, GroupPhase.BUFFERED):
                self.groups.drop(index, c.GroupEnd.EXPIRED, c.Reason(c.Why.EXPIRED))
        self._drop_delayed()
        return True

    def _drop_delayed(self) -> None:
        """Drop groups that training has waited for longer than admission wants (StaleFlow, section 4.3)."""
        gate = self.gate
        limit_s = gate.waits_s()
        if limit_s is None:
            return
        delayed = gate.delayed()
        if not delayed:
            self.delayed_since = None
            return
        delayed = self.groups.named("admission gate", gate, "delayed", delayed, GroupPhase.GENERATING)
        if self.delayed_since is None:
            self.delayed_since = self.owned.now
        waited_s = self.owned.now - self.delayed_since
        if waited_s >= limit_s:
            self.delayed_since = None
            why = c.Reason(c.Why.DELAYED, numbers={"waited_s": waited_s, "limit_s": limit_s})
            for index in delayed:
                self.groups.drop(index, c.GroupEnd.DELAYED, why)
            self.groups.drop_surplus()


def _learns_costs(spec: PipelineSpec) -> bool:
    """Whether a policy of a pipeline plans with the costs that the run fits."""
    return spec.routing.learns_costs() or spec.relocation.learns_costs()
