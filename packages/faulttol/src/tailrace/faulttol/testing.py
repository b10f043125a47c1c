"""The contract suite for recovery policies: run it on your own class. Standard library only.

from tailrace.faulttol.testing import check_recovery_policy

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
    Failure,
    FleetView,
    Health,
    MachineView,
    MemberView,
    Progress,
    Reason,
    RecoveryAction,
    RecoveryPolicy,
    Suspected,
)
from tailrace.faulttol.recovery import DISPENSABLE, ROLES

_GIVES_UP = (RecoveryAction.EVICT, RecoveryAction.FAIL)
_CAUSES = tuple(cause for cause in Cause if cause is not Cause.STOPPED)  # a stopped member is no failure
_PHASES = ("", "idle", "generating", "pulling", "training", "publishing", "saving")


def check_recovery_policy(policy: RecoveryPolicy, *, failures: int = 100, views: int = 300, seed: int = 0) -> None:
    """Check a recovery policy against its contract.

    * It answers for every role, cause and count, always the same: it keeps no state and does not change its arguments.
    * It does not evict the last member of a role, or a machine that is unknown.
    * It does not restart for ever a member that fails without work in between, on whatever machine it starts again. If that
      member is the last of its role, the run fails.
    * It suspects only live members of the view that have stood still, each once, with a reason.

    Args:
        policy: the policy under test.
        failures: failures in a row after which it must have given up.
        views: number of random fleets.
        seed: seed of the random fleets.

    Raises:
        AssertionError: the policy breaks the contract. The message shows the policy's input and the seed.
    """
    assert 0 < policy.window_s < math.inf, f"window_s is {policy.window_s}, expected above 0"
    draw = random.Random(seed)
    cases = list(_failures(failures))
    fleets = [_fleet(draw) for _ in range(views)]
    actions = [_action(policy, failure) for failure in cases]
    suspicions = [_suspicions(policy, view) for view in fleets]
    for index in draw.sample(range(len(cases)), len(cases)):
        again = _action(policy, cases[index])
        assert again is actions[index], f"first {actions[index]}, then {again}, for the same {cases[index]}"
    for index in draw.sample(range(len(fleets)), len(fleets)):
        repeated = _suspicions(policy, fleets[index])
        assert repeated == suspicions[index], (
            f"first {suspicions[index]}, then {repeated}, for the same {fleets[index]}; seed {seed}"
        )
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


def _action(policy: RecoveryPolicy, failure: Failure) -> RecoveryAction:
    asked = copy.deepcopy(failure)
    action = policy.on_down(asked)
    assert asked == failure, f"on_down changed {failure} into {asked}"
    assert isinstance(action, RecoveryAction), f"on_down answered {action!r}, expected an action, for {failure}"
    if action is RecoveryAction.EVICT:
        assert failure.others > 0 or failure.role in DISPENSABLE, (
            f"evicted, although it is the last member of its role: {failure}"
        )
    if action is RecoveryAction.EVICT_MACHINE:
        assert failure.machine, f"its machine is evicted, although it is unknown: {failure}"
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
    for cause, starting, others in itertools.product(_CAUSES, (False, True), (0, 2)):
        for count in range(1, failures + 1):
            machine, there = where(count)
            failure = Failure(
                role=role,
                member=f"{role}-0",
                cause=cause,
                machine=machine,
                failures=count,
                role_failures=count,
                machine_failures=there,
                starting=starting,
                others=others,
            )
            action = _action(policy, failure)
            if action in _GIVES_UP:
                break
        else:
            raise AssertionError(f"{action} for the {failures}th failure in a row without work in between: {failure}")
        if not others and role not in DISPENSABLE:
            assert action is RecoveryAction.FAIL, f"{action} of the last {role}: {failure}"


def _fleet(draw: random.Random) -> FleetView:
    machines = {
        f"m{index}": MachineView(f"m{index}", healthy=draw.random() < 0.8) for index in range(draw.randint(0, 3))
    }
    members = [
        MemberView(
            role=role,
            id=str(index),
            health=draw.choice(list(Health)),
            machine=draw.choice(["", *machines]),
            phase=draw.choice(_PHASES),
            still_s=draw.choice([0.0, 0.0, draw.uniform(0, 10), draw.expovariate(1 / 300)]),
            slowest_s=draw.choice([0.0, draw.uniform(0, 1), draw.expovariate(1 / 30)]),
            in_flight=draw.randint(0, 64),
        )
        for role in ROLES
        for index in range(draw.randint(0, 4))
    ]
    draw.shuffle(members)
    version = draw.randint(0, 9)
    progress = Progress(
        version=version,
        published=version,
        admitted=8 * version,
        generating=0,
        buffered=0,
        consumed=8 * version,
        dropped=0,
        batch_groups=8,
        last_version=10,
    )
    return FleetView(machines, tuple(members), progress, now_s=draw.uniform(0, 1e4), step_s=draw.uniform(0, 60))


def _suspicions(policy: RecoveryPolicy, view: FleetView) -> list[Suspected]:
    asked = copy.deepcopy(view)
    suspicions = list(policy.suspects(asked))
    assert asked == view, f"suspects changed {view} into {asked}"
    members = {(member.role, member.id): member for member in view.members}
    seen = set()
    for suspected in suspicions:
        assert isinstance(suspected, Suspected), f"suspects answered {suspected!r}, expected Suspected"
        assert isinstance(suspected.reason, Reason), f"the reason is {suspected.reason!r}, expected a Reason"
        key = suspected.role, suspected.id
        assert key in members, f"{suspected} is not among the members of {view}"
        assert key not in seen, f"{suspected} is suspected twice"
        seen.add(key)
        assert members[key].health is not Health.DOWN, f"suspected, although it is down already: {members[key]}"
        assert members[key].still_s > 0, f"suspected, although it did not stand still: {members[key]}"
    return suspicions
