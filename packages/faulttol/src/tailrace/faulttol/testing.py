"""The contract suites for recovery and detection policies: run them on your own class. Standard library only.

from tailrace.faulttol.testing import check_detection_policy, check_recovery_policy

def test_my_policy():
    check_recovery_policy(MyPolicy())
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from tailrace.contracts import (
    Cause,
    DetectionPolicy,
    Failure,
    RecoveryAction,
    RecoveryPolicy,
    Signs,
    Suspected,
    check_policy,
)
from tailrace.contracts.testing import check_reason
from tailrace.faulttol.recovery import DISPENSABLE, ROLES, Troubles

_GIVES_UP = (RecoveryAction.EVICT, RecoveryAction.FAIL)
_MOVES = (RecoveryAction.REPLACE, RecoveryAction.EVICT_MACHINE)
_RESTARTS_ALL = (RecoveryAction.RESTART_TASK, RecoveryAction.START_OVER)
_CAUSES = tuple(cause for cause in Cause if cause is not Cause.STOPPED)  # a stopped member is no failure


def check_recovery_policy(policy: RecoveryPolicy, *, failures: int = 100, seed: int = 0) -> None:
    """Check a recovery policy against its contract.

    * It answers for every role, cause and count, always the same: it keeps no state and does not change its arguments.
    * It does not evict the last member of a role, or a machine that is unknown, and makes only a hybrid's fault the trainer's.
    * It does not restart for ever a member that fails without work in between, on whatever machine it starts again. If that
      member is the last of its role, the run fails.

    Args:
        policy: the policy under test.
        failures: failures in a row after which it must have given up.
        seed: seed of the order of questions.

    Raises:
        AssertionError: the policy breaks the contract. The message shows the policy's input and the seed.
    """
    check_policy("recovery", policy)
    assert 0 < policy.window_s < math.inf, f"window_s is {policy.window_s}, expected above 0"
    draw = random.Random(seed)
    cases = list(_failures(failures))
    actions = [_action(policy, failure) for failure in cases]
    for index in draw.sample(range(len(cases)), len(cases)):
        again = _action(policy, cases[index])
        assert again is actions[index], f"first {actions[index]}, then {again}, for the same {cases[index]}"
    for role, where in itertools.product(ROLES, _MACHINES):
        _check_that_it_gives_up(policy, role, where, failures)


def _failures(most: int) -> Iterator[Failure]:
    counts = sorted({1, 2, 3, 4, 5, 10, most})
    for role, cause, count, others in itertools.product((*ROLES, "stranger"), _CAUSES, counts, (0, 1, 7)):
        seen = Failure(
            role=role,
            member=f"{role}-0",
            cause=cause,
            reason="for a test",
            step=count,
            failures=count,
            role_failures=count + others,
            others=others,
        )
        yield seen
        yield replace(seen, first_iteration=True, starting=True, phase="generating" if role == "replica" else "idle")
        yield replace(seen, machine="m0", machine_failures=2 * count)
        for elsewhere, beside in itertools.product((0, 1), (False, True)):
            yield replace(seen, stood="m0", elsewhere=elsewhere, beside_store=beside)
        yield replace(seen, stood="m1", elsewhere=2, moved=max(0, count - 1))
        if role == "replica":
            yield replace(seen, hybrid=True)
        if role == "trainer" and cause is Cause.MACHINE:
            yield replace(seen, machine="m0", standbys=others)


def _action(policy: RecoveryPolicy, failure: Failure) -> RecoveryAction:
    asked = replace(failure)
    action = policy.on_down(asked)
    assert asked == failure, f"on_down changed {failure} into {asked}"
    assert isinstance(action, RecoveryAction), f"on_down answered {action!r}, expected an action, for {failure}"
    if action is RecoveryAction.EVICT:
        assert failure.others > 0 or failure.role in DISPENSABLE, (
            f"evicted, although it is the last member of its role: {failure}"
        )
    if action is RecoveryAction.RESTART_TRAINER:
        assert failure.hybrid, f"the trainer restarts for a member that does not stand on its devices: {failure}"
    if action is RecoveryAction.EVICT_MACHINE:
        assert failure.machine or failure.stood, f"its machine is evicted, although it is unknown: {failure}"
        held = failure.beside_store and failure.cause is not Cause.MACHINE and not failure.machine_failures
        assert not held, f"the machine of the store is evicted for the fault of a member: {failure}"
    if action is RecoveryAction.STANDBY:
        assert failure.machine, f"a replica stands in, although the lost machine is unknown: {failure}"
        assert failure.standbys > 0, f"a replica stands in, although none can: {failure}"
    return action


# The machine of a member that fails for the n-th time, and failures on that machine in the window.
_MACHINES: tuple[Callable[[int], tuple[str, int]], ...] = (
    lambda count: ("", 0),  # noqa: ARG005 - the machine is unknown
    lambda count: ("m0", count),
    lambda count: ("m0", 10 * count),
    lambda count: (f"m{count}", 1),
    lambda count: (f"m{count // 5}", count % 5 + 1),
)


def _check_that_it_gives_up(
    policy: RecoveryPolicy, role: str, where: Callable[[int], tuple[str, int]], failures: int
) -> None:
    for cause, starting, others, elsewhere in itertools.product(_CAUSES, (False, True), (0, 2), (0, 3)):
        troubles, since, moved = Troubles(first_iteration=False), 0, 0
        for number in range(1, failures + 1):
            machine, there = where(number)
            trouble, since = troubles.failed(role, f"{role}-0", 7, starting=starting), since + 1
            failure = Failure(
                role=role,
                member=f"{role}-0",
                cause=cause,
                machine=machine,
                failures=since,
                role_failures=since,
                machine_failures=there,
                starting=starting,
                others=others,
                first_iteration=trouble.first_iteration,
                step_failures=trouble.step_failures,
                failed_starts=trouble.failed_starts,
                task_restarts=trouble.task_restarts,
                stood=machine,
                moved=moved,
                elsewhere=elsewhere if machine else 0,
            )
            action = _action(policy, failure)
            if action in _MOVES and cause is not Cause.MACHINE and not moved:
                moved = since
            if action in _GIVES_UP:
                break
            if action in _RESTARTS_ALL:
                troubles.task_restarted()
                since = moved = 0
        else:
            raise AssertionError(f"{action} for the {failures}th failure in a row without work in between: {failure}")
        if not others and role not in DISPENSABLE:
            assert action is RecoveryAction.FAIL, f"{action} of the last {role}: {failure}"


_PHASES = {
    "replica": ("generating", "generating", "pulling", "idle"),
    "trainer": ("training", "training", "stepping", "publishing", "saving", "idle"),
}


def check_detection_policy(policy: DetectionPolicy, *, fleets: int = 300, seed: int = 0) -> None:
    """Check a detection policy against its contract.

    * It suspects members whose signs were given, or the trainer where a replica stands on its devices, each once, with a
      reason that says what its kind promises.
    * The same signs give the same answer: it keeps no state and does not change its arguments.
    * Nobody is suspected who has just shown everything that can be shown, nor anybody because there is nobody else.
    * Whoever answers nothing for longer than `within_s` of its role is suspected, beside others and alone.

    Args:
        policy: the policy under test.
        fleets: number of random fleets.
        seed: seed of the random fleets.

    Raises:
        AssertionError: the policy breaks the contract. The message shows the policy's input and the seed.
    """
    check_policy("detection", policy)
    assert 0 < policy.look_s < math.inf, f"look_s is {policy.look_s}, expected above 0"
    draw = random.Random(seed)
    cases = [random_signs(draw) for _ in range(fleets)]
    first = [_suspected(policy, signs, seed) for signs in cases]
    for index in draw.sample(range(fleets), fleets):
        again = _suspected(policy, cases[index], seed)
        assert again == first[index], f"first {first[index]}, then {again}, for the same {cases[index]}; seed {seed}"
    assert not _suspected(policy, [], seed), "somebody is suspected, although nobody is there"
    for signs in cases:
        well = [replace(one, silent_s=0.0, still_s=0.0, quiet_s=0.0) for one in signs]
        found = _suspected(policy, well, seed)
        assert not found, f"suspected {found}, although all of {well} have just moved; seed {seed}"
    for role in ROLES:
        _check_that_it_notices(policy, role, draw, seed)


def random_signs(draw: random.Random) -> list[Signs]:
    """Signs of a random fleet, each member once."""
    machines = ["", *(f"m{index}" for index in range(draw.randint(0, 3)))]
    found = [
        _random_sign(draw, role, f"r{index}" if role == "replica" else str(index), draw.choice(machines))
        for role in ROLES
        for index in range(draw.randint(0, 1 if role in ("trainer", "data") else 4))
    ]
    draw.shuffle(found)
    return found


def _random_sign(draw: random.Random, role: str, id_: str, machine: str) -> Signs:
    replica = role == "replica"
    silent_s = draw.choice([0.0, 0.0, draw.uniform(0, 40), draw.expovariate(1 / 100)])
    return Signs(
        role,
        id_,
        machine,
        draw.choice(_PHASES.get(role, ("",))),
        draw.choice([0, 1, 8]) if replica else 0,
        draw.choice([0, 0, 3]) if replica else 0,
        silent_s,
        draw.choice([0.0, 0.0, draw.expovariate(1 / 100)]) if replica else 0.0,
        draw.choice([0.0, draw.uniform(0, 1), draw.expovariate(1 / 30)]),
        silent_s + draw.choice([0.0, draw.expovariate(1 / 200)]) if role in _PHASES else 0.0,
    )


def _check_that_it_notices(policy: DetectionPolicy, role: str, draw: random.Random, seed: int) -> None:
    within_s = policy.within_s(role)
    assert within_s > 0, f"within_s({role!r}) is {within_s}, expected above 0"
    if within_s == math.inf:
        return
    for phase in _PHASES.get(role, ("",)):
        gone_s = within_s + draw.uniform(0.1, 10)
        gone = Signs(role, "gone", "m9", phase, silent_s=gone_s, quiet_s=gone_s if role in _PHASES else 0.0)
        others = [one for one in random_signs(draw) if one.machine != "m9"]
        for signs in ([gone], [*others, gone]):
            found = _suspected(policy, signs, seed)
            assert any((one.role, one.id) == (role, "gone") for one in found), (
                f"not suspected after {gone_s:.1f} s without an answer, expected within {within_s:.1f} s: {gone}; seed {seed}"
            )


def _suspected(policy: DetectionPolicy, signs: list[Signs], seed: int) -> list[Suspected]:
    asked = copy.deepcopy(signs)
    found = list(policy.suspects(asked))
    assert asked == signs, f"suspects changed {signs} into {asked}; seed {seed}"
    members = {(one.role, one.id) for one in signs}
    seen = set()
    for suspected in found:
        assert isinstance(suspected, Suspected), f"suspects answered {suspected!r}, expected Suspected; seed {seed}"
        check_reason(suspected.reason, f"suspects, seed {seed}")
        key = suspected.role, suspected.id
        assert key in members, f"{suspected} is not among {signs}; seed {seed}"
        assert key not in seen, f"{suspected} is suspected twice; seed {seed}"
        seen.add(key)
    return found
