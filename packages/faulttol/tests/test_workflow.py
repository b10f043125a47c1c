"""Figure 7 of RobustRL: policy and counters against a slow reference, for every sequence of what may happen."""

import itertools

import pytest

from tailrace.contracts import Cause, Failure, RecoveryAction
from tailrace.faulttol import RestartTask, RoleBased, Troubles

RESTART, TASK, FAIL = RecoveryAction.RESTART, RecoveryAction.RESTART_TASK, RecoveryAction.FAIL
FAULT, START_FAILS, STEP = "fault", "a start fails", "a step ends"
MOST = 2


class Driven:
    """Policy and counters, as a controller drives them."""

    def __init__(self, policy):
        self.policy, self.troubles, self.step = policy, Troubles(), 0

    def fails(self, *, starting=False, role="trainer", cause=Cause.DIED, **more):
        trouble = self.troubles.failed(role, "0", self.step, starting=starting)
        failure = Failure(
            role, "0", cause=cause, step=self.step, starting=starting, first_iteration=trouble.first_iteration,
            step_failures=trouble.step_failures, failed_starts=trouble.failed_starts,
            task_restarts=trouble.task_restarts, **more,
        )  # fmt: skip
        action = self.policy.on_down(failure)
        if action in (RecoveryAction.RESTART_TASK, RecoveryAction.START_OVER):
            self.troubles.task_restarted()
        return action

    def up(self):
        self.troubles.came_up("trainer", "0")

    def ends_step(self):
        self.troubles.stepped(self.step)
        self.step += 1


def reference(history):
    """What the workflow answers to the last failure of a history, read off all that happened before, condition by condition."""
    answers = []
    for number, happened in enumerate(history):
        if happened not in (FAULT, START_FAILS):
            answers.append(None)
            continue
        before = list(zip(history[:number], answers, strict=True))
        restarts = [at for at, (_, answer) in enumerate(before) if answer is TASK]
        since = before[restarts[-1] + 1 :] if restarts else before  # of the run, or of the task's last restart
        iterations = [at for at, (what, _) in enumerate(since) if what == STEP]
        here = since[iterations[-1] + 1 :] if iterations else since  # in this step
        first_iteration = not iterations
        second = any(what == FAULT for what, _ in here)
        in_a_row = list(itertools.takewhile(lambda entry: entry[0] == START_FAILS, reversed(since)))
        everything = [at for at, (what, _) in enumerate(before) if what == STEP]
        in_vain = [answer for _, answer in (before[everything[-1] + 1 :] if everything else before) if answer is TASK]
        whole = (first_iteration or second) if happened == FAULT else bool(in_a_row)
        answers.append((TASK if len(in_vain) < MOST else FAIL) if whole else RESTART)
    return answers


def drive(history):
    driven, answers = Driven(RoleBased(max_task_restarts=MOST)), []
    for number, happened in enumerate(history):
        if happened == STEP:
            driven.up()
            driven.ends_step()
            answers.append(None)
            continue
        if happened == FAULT:
            driven.up()  # else it could not fail as it works
        answers.append(driven.fails(starting=happened == START_FAILS))
        if answers[-1] is FAIL:
            return history[: number + 1], answers
    return history, answers


@pytest.mark.parametrize("length", range(1, 9))
def test_every_sequence_of_faults_failed_starts_and_steps(length):
    for history in itertools.product((FAULT, START_FAILS, STEP), repeat=length):
        lived, answers = drive(history)
        assert answers == reference(lived), lived


def test_the_three_conditions_one_by_one():
    driven = Driven(RoleBased())
    assert driven.fails() is TASK  # in the first iteration
    driven.up()
    assert driven.fails() is TASK  # after a task restart it is a first iteration again
    driven.up()
    driven.ends_step()
    assert driven.fails() is RESTART
    driven.up()
    assert driven.fails() is TASK  # the second in one step
    driven.up()
    driven.ends_step()
    assert driven.fails() is RESTART
    assert driven.fails(starting=True) is RESTART  # one failed restart is permitted
    assert driven.fails(starting=True) is TASK


def test_a_step_that_is_begun_again_from_an_older_checkpoint_is_the_same_step():
    driven = Driven(RoleBased())
    for _ in range(5):
        driven.ends_step()
    assert driven.fails() is RESTART
    driven.up()
    driven.step = 3
    driven.ends_step()
    assert driven.fails() is RESTART  # another step
    driven.up()
    driven.ends_step()
    assert driven.fails() is TASK  # step 5 again


def test_other_roles_restart_alone_and_the_task_only_when_nobody_is_left():
    driven = Driven(RoleBased(max_restarts=2))
    driven.ends_step()
    for role in ("replica", "relay", "scorer", "data", "environment", "ranker"):
        assert [driven.fails(role=role, failures=count, others=1) for count in (1, 2)] == [RESTART, RESTART]
    assert driven.fails(role="replica", failures=3, others=1) is RecoveryAction.EVICT
    assert driven.fails(role="ranker", failures=3) is RecoveryAction.EVICT
    assert driven.fails(role="replica", failures=3) is TASK
    assert driven.fails(role="data", failures=3, others=1) is TASK
    assert driven.fails(role="stranger") is FAIL


def test_a_replicas_code_error_in_the_first_iteration_restarts_the_task():
    """The paper's footnote 2."""
    driven = Driven(RoleBased())
    assert driven.fails(role="replica", cause=Cause.DIED) is RESTART
    assert driven.fails(role="replica", cause=Cause.BROKE) is TASK
    driven.ends_step()
    assert driven.fails(role="replica", cause=Cause.BROKE) is RESTART


def test_a_machine_that_does_not_pass_its_checks_is_given_up_and_no_restart_failed():
    driven = Driven(RoleBased())
    for _ in range(5):
        assert driven.fails(starting=True, cause=Cause.MACHINE, machine="m1") is RecoveryAction.EVICT_MACHINE


@pytest.mark.parametrize("counts", [False, True])
def test_a_lost_machine_escalates_as_the_paper_has_it_only_where_it_counts(counts):
    lost = {"cause": Cause.MACHINE, "machine": "m1"}
    first, second = (TASK, TASK) if counts else (RecoveryAction.EVICT_MACHINE,) * 2
    driven = Driven(RoleBased(machines_count=counts))
    assert driven.fails(**lost) is first, "in the first iteration"
    driven = Driven(RoleBased(machines_count=counts))
    driven.ends_step()
    assert driven.fails(**lost) is RecoveryAction.EVICT_MACHINE
    driven.up()
    assert driven.fails(**lost) is second, "again in the same step"
    driven = Driven(RoleBased(machines_count=counts))
    driven.ends_step()
    assert driven.fails() is RESTART
    driven.up()
    assert driven.fails(**lost) is second, "whatever the first fault of the step was"
    for role in ("replica", "relay"):
        assert Driven(RoleBased(machines_count=counts)).fails(role=role, **lost) is RecoveryAction.EVICT_MACHINE
    driven = Driven(RoleBased(machines_count=counts))
    for _ in range(5):
        assert driven.fails(starting=True, **lost) is RecoveryAction.EVICT_MACHINE, "it did not pass its checks"


def test_the_baseline_starts_over():
    driven = Driven(RestartTask(max_task_restarts=2))
    assert [driven.fails() for _ in range(3)] == [RecoveryAction.START_OVER] * 2 + [FAIL]
    driven = Driven(RestartTask(max_task_restarts=2))
    for _ in range(9):
        assert driven.fails() is RecoveryAction.START_OVER
        driven.ends_step()
