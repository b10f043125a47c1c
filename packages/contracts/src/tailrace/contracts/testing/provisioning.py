"""Contract suite for provisioning policies."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Sequence

from tailrace.contracts.policies import ProvisioningPolicy
from tailrace.contracts.recovery import FleetView, Health, MachineView, MemberView, StartReplica, StopReplica
from tailrace.contracts.testing.reasons import check_reason
from tailrace.contracts.views import Progress

_STEPS, _ROUNDS = 60, 100


def check_provisioning_policy(policy: ProvisioningPolicy, *, seed: int = 0, cases: int = 60) -> int:
    """Check a provisioning policy against the rules of `ProvisioningPolicy.plan`, in runs whose members come, fail and go.

    Args:
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        Actions over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    actions = 0
    for case in range(seed, seed + cases):
        drive = ProvisioningDrive(policy, case)
        drive.settle()
        for _ in range(_STEPS):
            drive.happen()
            drive.settle()
        actions += drive.actions
    return actions


class ProvisioningDrive:
    """A fleet that does what the policy says, and in which members come, fail and go at random."""

    def __init__(self, policy: ProvisioningPolicy, seed: int) -> None:
        self.where = f"seed {seed}, {policy!r}"
        self.random = random.Random(seed)
        self.policy = policy
        self.actions = self.version = self.started = 0
        self.now_s = 0.0
        device = self.random.choice(["", "H800"])
        self.machines = {
            f"machine-{number}": MachineView(f"machine-{number}", self.random.choice(["", "north"]), device)
            for number in range(self.random.randint(1, 4))
        }
        self.members = [self.member(role, "0", Health.UP) for role in ("data", "trainer", "scorer", "relay")]

    def member(self, role: str, name: str, health: Health) -> MemberView:
        """A member on a random machine."""
        machine = self.random.choice([*self.machines]) if health is Health.UP else ""
        return MemberView(role, name, health, machine)

    def view(self) -> FleetView:
        """The policy's input."""
        batch, last = 4, 100
        progress = Progress(self.version, self.version, 0, 0, 0, self.version * batch, 0, batch, last)
        step_s = 30.0 if self.version > 1 else 0.0
        return FleetView(self.machines, tuple(self.members), progress, self.now_s, 10.0 * (self.version > 0), step_s)

    def settle(self) -> None:
        """Ask the policy and carry out its actions until it answers none."""
        for _ in range(_ROUNDS):
            plan = self.plan()
            if not plan:
                working = [member for member in self.replicas() if member.health is not Health.STOPPING]
                assert working, (
                    f"{self.where}: it plans nothing, and no replica is up or starting; {self.replicas()!r:.200}"
                )
                return
            self.carry_out(plan)
        raise AssertionError(f"{self.where}: after {_ROUNDS} plans in one moment it still wants {plan!r:.200}")

    def plan(self) -> Sequence[StartReplica | StopReplica]:
        """The policy's answer; fails if it depends on anything but the view."""
        view = self.view()
        before = copy.deepcopy(view)
        plan = list(self.policy.plan(view))
        assert view == before, f"{self.where}: the view was changed"
        again = list(self.policy.plan(before))
        assert again == plan, f"{self.where}: it plans {plan!r:.200} and then {again!r:.200}"
        return plan

    def carry_out(self, plan: Sequence[StartReplica | StopReplica]) -> None:
        """Check each action, then start and stop replicas."""
        for action in plan:
            self.actions += 1
            if isinstance(action, StartReplica):
                self.members.append(self.member("replica", f"replica-{self.started}", Health.STARTING))
                self.started += 1
            else:
                assert isinstance(action, StopReplica), f"{self.where}: found {action!r}, expected a start or a stop"
                name = action.replica
                found = [member for member in self.replicas() if member.id == name]
                assert found, f"{self.where}: it stops {name}, which is no replica of {self.replicas()!r:.200}"
                assert found[0].health is not Health.STOPPING, f"{self.where}: it stops {name}, which is stopping"
                self.change(found[0], Health.STOPPING)
            check_reason(action.reason, self.where)

    def happen(self) -> None:
        """One random event: a member comes up, fails, is restarted, evicted or gone, or the trainer has made a step."""
        self.now_s += self.random.random() * 60
        if self.random.random() < 0.2:
            self.version += 1
            return
        member = self.random.choice(self.members)
        if member.health is Health.STARTING:
            self.change(member, self.random.choice([Health.UP, Health.UP, Health.DOWN]))
        elif member.health is Health.UP and self.random.random() < 0.5:
            self.change(member, Health.DOWN)
        elif member.health is Health.DOWN and member.role == "replica" and self.random.random() < 0.3:
            self.members.remove(member)
        elif member.health is Health.DOWN:
            self.change(member, Health.STARTING)
        elif member.health is Health.STOPPING:
            self.members.remove(member)

    def replicas(self) -> list[MemberView]:
        """Replicas that are members now."""
        return [member for member in self.members if member.role == "replica"]

    def change(self, member: MemberView, health: Health) -> None:
        """Set a member's health."""
        place = self.members.index(member)
        machine = member.machine or self.random.choice([*self.machines])
        self.members[place] = dataclasses.replace(member, health=health, machine=machine)
