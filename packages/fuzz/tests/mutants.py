"""Bugs that are planted to see whether fuzzing finds them: each a few lines that a tired person might write."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tailrace import contracts as c
from tailrace.controller.batches import Batches
from tailrace.controller.controller import Controller
from tailrace.controller.fleet import Replicas, ReplicaState
from tailrace.controller.ledger import Ledger
from tailrace.controller.lending import Lending
from tailrace.controller.members import Members
from tailrace.controller.policies.tail_batching import InRounds
from tailrace.controller.recovery.fall_back import FallBack
from tailrace.controller.trainer_state import TrainerState
from tailrace.controller.trajectories import Phase
from tailrace.controller.weight_sources import Sources, sources
from tailrace.controller.weights import Weights
from tailrace.fleetsim.host.failures import Injuries
from tailrace.fleetsim.members.replica import ModelledReplica
from tailrace.fuzz.case import Case
from tailrace.fuzz.checks.bookkeeping import BOOKS, REBUILT
from tailrace.fuzz.checks.data_plane import TOKENS, WEIGHTS
from tailrace.fuzz.checks.devices import SHARED
from tailrace.fuzz.checks.progress import PROGRESS
from tailrace.fuzz.checks.training import BOUND, ONCE
from tailrace.fuzz.checks.weight_versions import FENCE
from tailrace.fuzz.trial import CRASHED
from tailrace.pipeline.roles.data import Dropped
from tailrace.repack import Hybrid, RoundRobin
from tailrace.rollout import TailRounds
from tailrace.rollout.command_order import CommandOrder
from tailrace.staleness import StalenessError
from tailrace.staleness.bounded import BoundedGate, BufferTentative


@dataclass(frozen=True)
class Mutant:
    """A planted bug: what it does to the code, and which invariant it breaks."""

    plant: Callable
    found: tuple[str, ...]


def _a_gate_that_admits_without_checking(patch):
    """What fails the check is started all the same, as if it were new; and nobody else looks."""
    reserve, planted = BoundedGate.start, set()

    def start(gate, group, version):
        planted.add(id(gate.manager))
        with contextlib.suppress(StalenessError):
            return reserve(gate, group, version)
        return reserve(gate, group, gate.manager.version)

    def take(tentative, group, version):
        with contextlib.suppress(StalenessError):
            tentative._fork.take(group, version)

    def allows(tentative, version):
        return any(tentative._fork.allows(newer) for newer in range(version, version + 8))

    patch.setattr(BoundedGate, "start", start)
    kept = property(lambda gate: None if id(gate.manager) in planted else gate.manager.bound)
    patch.setattr(BoundedGate, "bound", kept)
    patch.setattr(BufferTentative, "take", take)
    patch.setattr(BufferTentative, "allows", allows)


def _planning_that_forgets_what_it_planned(patch):
    """Several checks of one pass are not added up."""
    patch.setattr(BufferTentative, "take", lambda tentative, group, version: None)


def _serving_what_arrived_damaged(patch):
    patch.setattr(Injuries, "torn", lambda injuries, replica: False)


def _work_before_the_first_pull(patch):
    on_up = Controller._on_up

    def served_at_once(controller, event):
        on_up(controller, event)
        if event.role == "replica" and controller.trainer.published >= 0:
            controller.fleet.replicas[event.id].version = controller.trainer.published

    patch.setattr(Controller, "_on_up", served_at_once)


def _a_source_that_serves_two(patch):
    """Who serves somebody is named to others too."""

    def all_free(*arguments, **named):
        found = sources(*arguments, **named)
        return Sources(found.free + found.busy if named["peers"] else found.free)

    patch.setattr("tailrace.controller.coordinator.sources", all_free)


def _a_trajectory_lost_with_its_replica(patch):
    returned = Ledger.returned

    def lost(ledger, trajectory, tokens):
        if tokens is None and ledger.trajectories[trajectory].sample == 1:
            ledger.trajectories[trajectory].phase = Phase.DONE  # somebody will have seen to it
            ledger.trajectories[trajectory].replica = None
            return ledger.trajectories[trajectory]
        return returned(ledger, trajectory, tokens)

    patch.setattr(Ledger, "returned", lost)


def _commands_carried_out_as_often_as_they_arrive(patch):
    def add(order, command):
        order._ready.append(command)

    patch.setattr(CommandOrder, "add", add)


def _a_broken_verifier_as_a_zero(patch):
    begin = Controller.__init__

    def planted(controller, *arguments, **named):
        begin(controller, *arguments, **named)
        scored = controller.responses.scored
        controller._handlers[c.ScoringFailed] = lambda event: scored([c.Scored(event.trajectory, 0.0)])

    patch.setattr(Controller, "__init__", planted)


def _version_numbers_used_again(patch):
    fall_back = TrainerState.fall_back

    def reuse(trainer, durable):
        fall_back(trainer, durable)
        trainer.batches.pop(trainer.version, None)
        trainer.version = durable
        trainer.batches[durable] = trainer.step

    patch.setattr(TrainerState, "fall_back", reuse)


def _a_version_that_is_seen_before_it_is_saved(patch):
    """The fence is left out."""
    patch.setattr(TrainerState, "is_safe", lambda trainer, version: True)


def _a_controller_that_remembers_beside_its_log(patch):
    route, spec, calls = RoundRobin.route, Case.spec, [0]

    def new_run(case, *policies):
        calls[0] = 0  # so that the bug, too, is the same in every run of a case
        return spec(case, *policies)

    def spread(policy, cycle):
        calls[0] += 1
        return route(policy, replace(cycle, routings=cycle.routings + calls[0] // 7))

    patch.setattr(RoundRobin, "route", spread)
    patch.setattr(Case, "spec", new_run)


def _an_interruption_that_counts_a_token_too_many(patch):
    interrupt = ModelledReplica._interrupt

    def more(event):
        return replace(event, tokens_kept=event.tokens_kept + 1) if isinstance(event, c.Interrupted) else event

    def counts(replica, command):
        say = ModelledReplica._say
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ModelledReplica, "_say", lambda who, events: say(who, [more(event) for event in events]))
            interrupt(replica, command)

    patch.setattr(ModelledReplica, "_interrupt", counts)


def _a_failed_pull_that_nobody_hears_of(patch):
    patch.setattr(Weights, "pull_failed", lambda weights, event: None)


def _a_version_that_is_gone_for_the_controller_alone(patch):
    """Fuzzing found this one: what the store kept of that version comes back as if it were of another."""

    def gone(weights, version):
        ledger = weights._ledger
        for name in [*ledger.waiting.level_of, *ledger.stranded_evaluations]:
            if ledger.trajectories[name].version == version:
                ledger.restarted(ledger.trajectories[name])

    patch.setattr(Weights, "_version_gone", gone)


def _a_group_streamed_twice(patch):
    """Each command to add gradients has the groups before it too."""
    names = Batches._names

    def all_so_far(batches, groups):
        given = batches._trainer.accumulated
        return names(batches, given if batches._at_once and set(groups) <= set(given) else groups)

    patch.setattr(Batches, "_names", all_so_far)


def _a_queue_that_is_lost(patch):
    """What a short round did not keep is forgotten when the round is over."""
    close = TailRounds.close

    def forget(rounds, trained):
        late = close(rounds, trained)
        rounds._queue = [prompt for prompt in rounds._queue if prompt not in late]
        return late

    patch.setattr(TailRounds, "close", forget)


def _a_deferred_prompt_that_is_done(patch):
    """A prompt whose group came too late counts as filtered, and its group as gone for good."""
    ended = InRounds.ended

    def done(source, group, end):
        fate = ended(source, group, end)
        return c.PromptFate.DONE if end is c.GroupEnd.SURPLUS else fate

    patch.setattr(InRounds, "ended", done)


def _work_on_devices_that_are_lent(patch):
    """A replica is given work whoever has its devices."""
    serves = ReplicaState.serves.fget  # type: ignore[attr-defined]

    def still(replica):
        lent, replica.lent = replica.lent, False
        try:
            return serves(replica)
        finally:
            replica.lent = lent

    patch.setattr(ReplicaState, "serves", property(still))
    patch.setattr(Replicas, "up", lambda fleet: [r for r in fleet.replicas.values() if r.member.health is c.Health.UP])


def _a_step_beside_a_cell_at_work(patch):
    """The batch is complete, so it is trained on, whatever cells still do."""
    add = Batches._add

    def hasty(batches):
        return batches._step() or add(batches)

    patch.setattr(Batches, "_add", hasty)


def _a_late_route_that_begins_what_was_dropped(patch):
    """The store takes what a replica begins, whenever it was routed."""
    patch.setattr(Dropped, "wanted", lambda dropped, refs, seq: refs)


def _a_step_that_waits_for_what_only_it_lets_start(patch):
    """After the trainer has fallen back, the batch after the next is launched already and starts at the step's version only."""

    def holds(batches):
        return batches._batchwise and bool(batches._ledger.unstarted) and batches._gate.ready()

    patch.setattr(Batches, "holds", property(holds))


def _a_step_before_hybrids_have_left(patch):
    """The trainer computes although replicas have not left its devices."""
    patch.setattr(Lending, "_has_left", lambda lending, replica: True)


def _hybrids_that_yield_before_their_share(patch):
    """Any complete group is enough, and nobody need generate on."""
    patch.setattr(Hybrid, "_yield", lambda policy, batch, others: batch.trains or batch.ready or batch.done > 0)


def _failures_that_are_forgotten(patch):
    """The policy as it once was: what fails again after the policy's window fails for the first time."""
    count = Members.failure

    def failure(members, state, event, now, window_s, *rest):
        if members.failed and now - members.failed[-1][0] >= window_s:
            state.failures.clear()
        return count(members, state, event, now, window_s, *rest)

    patch.setattr(Members, "failure", failure)


def _failures_that_count_twice(patch):
    """The run gives up after half of the restarts that recovery allows."""
    count = Members.failure

    def failure(members, *arguments):
        found = count(members, *arguments)
        return replace(found, failures=2 * found.failures, role_failures=2 * found.role_failures)

    patch.setattr(Members, "failure", failure)


def _newer_weights_and_the_batches_of_the_checkpoint(patch):
    """A trainer that took newer weights gets the batches again that these were made of."""
    to = FallBack.to

    def back(fall_back, version):
        taken = fall_back._state.trainer.taking is not None
        if taken:
            fall_back._state.ledger.roll_back(fall_back._state.trainer.fallbacks[-1])
        to(fall_back, version)

    patch.setattr(FallBack, "to", back)


MUTANTS = {
    "newer weights, and the batches of the checkpoint": Mutant(
        _newer_weights_and_the_batches_of_the_checkpoint, (ONCE, CRASHED)
    ),
    "failures that are forgotten": Mutant(_failures_that_are_forgotten, (PROGRESS,)),
    "failures that count twice": Mutant(_failures_that_count_twice, (PROGRESS,)),
    "a step before hybrids have left": Mutant(_a_step_before_hybrids_have_left, (SHARED,)),
    "hybrids that yield before their share": Mutant(_hybrids_that_yield_before_their_share, (SHARED, PROGRESS)),
    "a step that waits for what only it lets start": Mutant(
        _a_step_that_waits_for_what_only_it_lets_start, (PROGRESS,)
    ),
    "a queue that is lost": Mutant(_a_queue_that_is_lost, (ONCE,)),
    "a deferred prompt that is done": Mutant(_a_deferred_prompt_that_is_done, (ONCE,)),
    "work on devices that are lent": Mutant(_work_on_devices_that_are_lent, (SHARED,)),
    "a late route that begins what was dropped": Mutant(_a_late_route_that_begins_what_was_dropped, (ONCE,)),
    "a group streamed twice": Mutant(_a_group_streamed_twice, (ONCE,)),
    "a step beside a cell at work": Mutant(_a_step_beside_a_cell_at_work, (ONCE, CRASHED)),
    "a gate that admits without checking": Mutant(_a_gate_that_admits_without_checking, (BOUND,)),
    "planning that forgets what it planned": Mutant(_planning_that_forgets_what_it_planned, (CRASHED, PROGRESS)),
    "serving what arrived damaged": Mutant(_serving_what_arrived_damaged, (WEIGHTS,)),
    "work before the first pull": Mutant(_work_before_the_first_pull, (WEIGHTS,)),
    "a source that serves two": Mutant(_a_source_that_serves_two, (WEIGHTS,)),
    "a trajectory lost with its replica": Mutant(_a_trajectory_lost_with_its_replica, (BOOKS, PROGRESS)),
    "commands carried out as they arrive": Mutant(
        _commands_carried_out_as_often_as_they_arrive, (TOKENS, WEIGHTS, BOOKS)
    ),
    "a broken verifier as a zero": Mutant(_a_broken_verifier_as_a_zero, (ONCE,)),
    "version numbers used again": Mutant(_version_numbers_used_again, (WEIGHTS,)),
    "a version that is seen before it is saved": Mutant(_a_version_that_is_seen_before_it_is_saved, (FENCE,)),
    "a controller that remembers beside its log": Mutant(_a_controller_that_remembers_beside_its_log, (REBUILT,)),
    "an interruption that counts a token too many": Mutant(_an_interruption_that_counts_a_token_too_many, (TOKENS,)),
    "a version that is gone for the controller alone": Mutant(
        _a_version_that_is_gone_for_the_controller_alone, (TOKENS,)
    ),
    "a failed pull that nobody hears of": Mutant(_a_failed_pull_that_nobody_hears_of, (PROGRESS, BOOKS)),
}
