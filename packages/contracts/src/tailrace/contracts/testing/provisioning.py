"""Contract suite for provisioning policies."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterable, Sequence

from tailrace.contracts.axes import check_policy
from tailrace.contracts.policies import ProvisioningPolicy
from tailrace.contracts.recovery import (
    BatchView,
    FleetAction,
    FleetView,
    Health,
    IterationRecord,
    LendReplica,
    LoanRecord,
    MachineView,
    MemberView,
    ReturnReplica,
    StartReplica,
    StopReplica,
)
from tailrace.contracts.testing.reasons import check_reason
from tailrace.contracts.views import Progress, ReplicaView, RoundRecord, RoundView


class BatchDrive:
    """The next batch of a run, and which replicas stand on the trainer's devices.

    Args:
        share: of a batch that is complete when hybrids yield.
        seed: of what happens.
        where: the beginning of an error message.
    """

    def __init__(self, share: float, seed: int, where: str) -> None:
        self.share, self.where = share, where
        self.random = random.Random(f"batches, {seed}")
        self.all = self.random.random() < 0.3
        self.batch: BatchView | None = BatchView(8, 0, away=True)

    def hybrid(self, name: str) -> bool:
        """Whether a replica stands on the trainer's devices."""
        return self.all or int(name.partition("-")[2]) % 2 == 0

    def marked(self, members: Iterable[MemberView]) -> tuple[MemberView, ...]:
        """The members, with the hybrids marked."""
        return tuple(
            dataclasses.replace(member, hybrid=member.role == "replica" and self.hybrid(member.id))
            for member in members
        )

    def load(self, load: ReplicaView) -> ReplicaView:
        """A load as it is here: some replicas pull, serve nothing yet or run an evaluation."""
        busy = self.random.random()
        changes = (
            {"pulling": True}
            if busy < 0.1
            else {"pinned": True}
            if busy < 0.2
            else {"version": None}
            if busy < 0.25
            else {}
        )
        return dataclasses.replace(load, cells=load.cells if self.hybrid(load.replica) else (), **changes)

    def happen(self) -> None:
        """A group completes, the trainer begins or ends to compute, dies or comes back, or the run is over."""
        batch = self.batch or BatchView(8, 0)
        kind = self.random.choice(["group"] * 6 + ["trainer"] * 3 + ["away", "over"])
        if kind == "over":
            self.batch = None
        elif kind == "away":
            self.batch = dataclasses.replace(batch, away=not batch.away, trains=False)
        elif kind == "trainer" and not batch.away:
            done = 0 if not batch.trains else batch.done
            self.batch = dataclasses.replace(batch, trains=not batch.trains, done=done, ready=False)
        else:
            done = min(batch.size, batch.done + self.random.choice([1, 1, 3]))
            self.batch = dataclasses.replace(batch, done=done, ready=done == batch.size and self.random.random() < 0.8)

    def must_yield(self) -> bool:
        """Whether the trainer computes, or could."""
        batch = self.batch
        return batch is not None and not batch.away and (batch.trains or batch.ready)

    def may_yield(self, replicas: Sequence[MemberView]) -> bool:
        """Whether hybrids may yield: they must, or others generate on and the batch is so far."""
        batch = self.batch
        if batch is None or batch.away:
            return False
        others = any(not self.hybrid(member.id) for member in replicas)
        return self.must_yield() or (others and batch.done / batch.size >= self.share)

    def check_lend(self, name: str, replicas: Sequence[MemberView], loads: Sequence[ReplicaView]) -> None:
        """Check that a replica may be lent now."""
        assert self.may_yield(replicas), f"{self.where}: it lends {name} with {self.batch}, before hybrids yield"
        assert any(load.replica == name and may_leave(load) for load in loads), (
            f"{self.where}: it lends {name}, which is no hybrid, or pulls, serves nothing or runs an evaluation"
        )

    def check_settled(self, lent: set[str], replicas: Sequence[MemberView], loads: Sequence[ReplicaView]) -> None:
        """Check what the policy leaves as it is."""
        if self.must_yield():
            kept = [load.replica for load in loads if may_leave(load)]
            assert not kept, f"{self.where}: it keeps {kept} from a trainer that needs all devices: {self.batch}"
        batch = self.batch
        if lent and (batch is None or (not batch.away and not self.may_yield(replicas))):
            raise AssertionError(f"{self.where}: {sorted(lent)} are lent, and the trainer needs no devices: {batch}")


def may_leave(load: ReplicaView) -> bool:
    """Whether a replica that is not lent is a hybrid that can be."""
    return bool(load.cells) and load.version is not None and not load.pulling and not load.pinned


_STEPS, _ROUNDS = 60, 100
_Actions = Sequence[FleetAction]


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
    check_policy("provisioning", policy)
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
        self.cells, self.kv = self.random.choice([1, 2, 2, 4]), 0.01
        self.lent: set[str] = set()
        self.judge_cell = 0 if seed % 4 == 3 else None
        self.devices: int | None = None  # of the start
        self.round: RoundView | None = None
        self.iterations: list[IterationRecord] = []
        self.times = random.Random(f"iterations, {seed}")
        self.slower = self.times.choice([0.2, 0.9, 1.0, 1.1, 5.0])  # how much longer generation takes than training
        share = policy.yields_from()
        self.batches = None if share is None else BatchDrive(share, seed, self.where)
        self.growth, self.watched = policy.growth(), policy.watched_iterations()
        self.in_rounds = policy.round_milestones() is not None
        self.loads: list[ReplicaView] = []
        self.loans: list[LoanRecord] = []
        self.taken = random.Random(f"loans, {seed}")
        self.seconds = (0.0, 60.0, 30.0)  # of the open round, of one like it, of a batch's gradients
        self.fails = self.random.choice([0.5, 0.5, 0.02])  # how often a member that is up and is struck fails

    def member(self, role: str, name: str, health: Health) -> MemberView:
        """A member on a random machine."""
        machine = self.random.choice([*self.machines]) if health is Health.UP else ""
        return MemberView(role, name, health, machine)

    def view(self) -> FleetView:
        """The policy's input."""
        batch, last = 4, 100
        progress = Progress(self.version, self.version, 0, 0, 0, self.version * batch, 0, batch, last)
        step_s = 30.0 if self.version > 1 else 0.0
        view = FleetView(self.machines, tuple(self.members), progress, self.now_s, 10.0 * (self.version > 0), step_s)
        if self.watched:
            iterations = tuple(self.iterations[-self.watched :])
            view = dataclasses.replace(view, iterations=iterations, lengths=(5, 50, 500))
        if self.batches is not None:
            self.loads = [load for load in self.loads if load.replica not in self.lent]
            members, lent = self.batches.marked(self.members), tuple(sorted(self.lent))
            return dataclasses.replace(
                view, members=members, loads=tuple(self.loads), lent=lent, batch=self.batches.batch
            )
        if not self.in_rounds:
            return view
        loads = self.unlent()
        passed_s, lasted_s, gradients_s = self.seconds
        return dataclasses.replace(
            view,
            round=self.round,
            rounds=(RoundRecord(0, "long", 10, 1, 0, lasted_s),),
            loads=tuple(loads),
            lengths=(5, 50, 500),
            lent=tuple(sorted(self.lent)),
            round_s=0.0 if self.round is None else passed_s,
            gradients_s=gradients_s,
            loans=tuple(self.loans[-16:]),
        )

    def unlent(self) -> list[ReplicaView]:
        """The loads of the replicas that are up and not lent."""
        up = [member for member in self.replicas() if member.health is Health.UP and member.id not in self.lent]
        return [self.load(member.id) for member in up]

    def load(self, name: str) -> ReplicaView:
        """The load of a replica that shares its devices with cells of the trainer, one for each of its devices."""
        first, kv = int(name.partition("-")[2]), self.kv
        (tp,) = (member.tp for member in self.members if member.id == name and member.role == "replica")
        cells = tuple(sorted({(first + place) % self.cells for place in range(tp)}))
        kept = self.batches is None and self.judge_cell in cells
        return ReplicaView(name, self.version, False, 2, 16, kv, kv, kv, 0, True, 2, 1_000, cells=cells, kept=kept)

    def settle(self) -> None:
        """Ask the policy and carry out its actions until it answers none."""
        if self.batches is not None:
            self.loads = [self.batches.load(load) for load in self.unlent()]
        for _ in range(_ROUNDS):
            plan = self.plan()
            if not plan:
                working = [member for member in self.replicas() if member.health is not Health.STOPPING]
                assert working, (
                    f"{self.where}: it plans nothing, and no replica is up or starting; {self.replicas()!r:.200}"
                )
                if self.devices is None:
                    self.has_started(working)
                if self.batches is not None:
                    self.batches.check_settled(self.lent, working, self.loads)
                return
            self.carry_out(plan)
        raise AssertionError(f"{self.where}: after {_ROUNDS} plans in one moment it still wants {plan!r:.200}")

    def plan(self) -> _Actions:
        """The policy's answer; fails if it depends on anything but the view."""
        view = self.view()
        before = copy.deepcopy(view)
        plan = list(self.policy.plan(view))
        assert view == before, f"{self.where}: the view was changed"
        again = list(self.policy.plan(before))
        assert again == plan, f"{self.where}: it plans {plan!r:.200} and then {again!r:.200}"
        return plan

    def carry_out(self, plan: _Actions) -> None:
        """Check each action, then start, stop and resize replicas."""
        named: set[str] = set()
        for action in plan:
            self.actions += 1
            if isinstance(action, StartReplica):
                fresh = self.member("replica", f"replica-{self.started}", Health.STARTING)
                assert action.tp is None or _is_size(action.tp), f"{self.where}: it starts one of {action.tp} devices"
                self.members.append(dataclasses.replace(fresh, tp=action.tp or 1))
                self.started += 1
            else:
                expected = "expected a start, a stop, a resize, a loan or a return"
                assert isinstance(action, FleetAction), f"{self.where}: found {action!r}, {expected}"
                name = action.replica
                if isinstance(action, LendReplica | ReturnReplica):
                    self.change_hands(action)
                    continue
                found = [member for member in self.replicas() if member.id == name]
                does = f"{self.where}: it stops or resizes {name}"
                assert found, f"{does}, which is no replica of {self.replicas()!r:.200}"
                assert found[0].health is not Health.STOPPING, f"{does}, which is stopping"
                assert name not in named, f"{does} twice in one plan"
                named.add(name)
                lent = {name} & self.lent if isinstance(action, StopReplica) else self.lent
                assert not lent, f"{does} while the devices of {sorted(lent)} are lent, expected a return before"
                if isinstance(action, StopReplica):
                    self.change(found[0], Health.STOPPING)
                else:
                    assert _is_size(action.tp), f"{does} to {action.tp} devices, expected a power of two"
                    self.change(found[0], Health.RESIZING, action.tp)
            check_reason(action.reason, self.where)
        self.check_room()

    def has_started(self, working: Sequence[MemberView]) -> None:
        """The replicas of the start are there."""
        self.devices = sum(member.tp for member in working)
        if self.growth is not None:
            start, most = self.growth.start, self.growth.most
            assert len(working) == start, f"{self.where}: it starts {len(working)} replicas, and says start={start}"
            assert start <= most, f"{self.where}: it says start={start} and most={most}, expected at least as many"

    def check_room(self) -> None:
        """Check that there are devices for all replicas that are not stopping."""
        working = [member for member in self.replicas() if member.health is not Health.STOPPING]
        if self.growth is not None:
            most = self.growth.most
            assert len(working) <= most, f"{self.where}: it has {len(working)} replicas, and says most={most}"
        elif self.devices is not None:
            devices = sum(member.tp for member in working)
            assert devices <= self.devices, (
                f"{self.where}: its replicas use {devices} devices after a start with {self.devices}, expected a policy that "
                "says how many they may be (growth)"
            )

    def happen(self) -> None:
        """One random event: a member comes up, fails, is restarted, evicted or gone, or the trainer has made a step."""
        self.now_s += self.random.random() * 60
        if self.in_rounds:
            self.next_in_round()
        if self.batches is not None:
            self.batches.happen()
        if self.random.random() < 0.2:
            self.version += 1
            self.iterations.append(self.iteration())
            if self.times.random() < 0.1:
                self.slower = self.times.choice([0.2, 0.9, 1.0, 1.1, 5.0])
            return
        member = self.random.choice(self.members)
        if member.health is Health.RESIZING:
            self.change(member, self.random.choice([Health.STARTING, Health.STARTING, Health.DOWN]))
        elif member.health is Health.STARTING:
            self.change(member, self.random.choice([Health.UP, Health.UP, Health.DOWN]))
        elif member.health is Health.UP and self.random.random() < self.fails:
            self.change(member, Health.DOWN)
        elif member.health is Health.DOWN and member.role == "replica" and self.random.random() < 0.3:
            self.members.remove(member)
        elif member.health is Health.DOWN:
            self.change(member, Health.STARTING)
        elif member.health is Health.STOPPING:
            self.members.remove(member)

    def iteration(self) -> IterationRecord:
        """An iteration that is over: the fewer replicas serve, the longer it generates."""
        up = sum(member.health is Health.UP for member in self.replicas())
        all_up = up if up == len(self.replicas()) else 0
        generation_s = 10.0 * self.slower / max(1, up) * self.times.uniform(0.8, 1.2)
        return IterationRecord(self.version, max(10.0, generation_s), generation_s, 10.0, all_up, 3)

    def change_hands(self, action: LendReplica | ReturnReplica) -> None:
        """Lend or return the devices of a replica."""
        up = [member.id for member in self.replicas() if member.health is Health.UP]
        if isinstance(action, ReturnReplica):
            assert action.replica in self.lent, f"{self.where}: {action!r}, and its devices are not lent"
            self.lent.discard(action.replica)
            self.loans.append(
                LoanRecord(self.version, self.taken.choice([0.0, 9.0]), self.taken.choice([0.0, 3.0, 99.0]))
            )
            return
        assert action.replica in up, f"{self.where}: {action!r}, and it is not up"
        assert action.replica not in self.lent, f"{self.where}: {action!r}, and its devices are lent already"
        if self.batches is not None:
            working = [member for member in self.replicas() if member.health is not Health.STOPPING]
            self.batches.check_lend(action.replica, working, self.loads)
            self.lent.add(action.replica)
            return
        assert self.round is not None, f"{self.where}: {action!r} between rounds"
        assert not self.load(action.replica).kept, f"{self.where}: {action!r}, and it stands beside a judge"
        self.lent.add(action.replica)
        assert self.lent != set(up), f"{self.where}: {action!r}, and no replica has its devices"

    def next_in_round(self) -> None:
        """A round begins, goes on or ends."""
        if self.round is None or self.random.random() < 0.1:
            begins = self.round is None
            self.round = RoundView(self.version, "long", 10, 0, 100, 0) if begins else None
        else:
            generated = min(100, self.round.generated + self.random.randint(0, 20))
            self.round = dataclasses.replace(self.round, generated=generated)
        self.kv = self.random.choice([0.01, 0.5])
        self.seconds = self.taken.choice([0.0, 20.0, 80.0]), 60.0, self.taken.choice([0.0, 5.0, 30.0])

    def replicas(self) -> list[MemberView]:
        """Replicas that are members now."""
        return [member for member in self.members if member.role == "replica"]

    def change(self, member: MemberView, health: Health, tp: int | None = None) -> None:
        """Set a member's health and, if given, its number of devices."""
        place = self.members.index(member)
        self.lent.discard(member.id)  # a new process has its devices
        machine = member.machine or self.random.choice([*self.machines])
        self.members[place] = dataclasses.replace(member, health=health, machine=machine, tp=tp or member.tp)


def _is_size(devices: int) -> bool:
    return devices >= 1 and devices & (devices - 1) == 0
