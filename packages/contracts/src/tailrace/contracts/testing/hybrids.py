"""The part of the provisioning suite for a policy whose hybrids yield to the trainer: batches that fill and are trained on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence

from tailrace.contracts.hybrids import YieldsDevices
from tailrace.contracts.recovery import BatchView, MemberView
from tailrace.contracts.views import ReplicaView


class BatchDrive:
    """The next batch of a run, and which replicas stand on the trainer's devices.

    Args:
        policy: the policy under test.
        seed: of what happens.
        where: the beginning of an error message.
    """

    def __init__(self, policy: YieldsDevices, seed: int, where: str) -> None:
        self.policy, self.where = policy, where
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
        return self.must_yield() or (others and batch.done >= self.policy.yields_at * batch.size)

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
