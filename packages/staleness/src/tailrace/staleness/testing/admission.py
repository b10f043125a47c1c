"""Contract suite for admission policies: random events on a gate, compared with a simple record of the same events."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tailrace.contracts import AdmissionGate, AdmissionPolicy, Candidate, TailraceError, check_policy


class RandomSampler:
    """Chooses candidates at random. An admission that guarantees a bound must do so under any choice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of `count` of them."""
        return [candidate.key for candidate in self._random.sample(list(candidates), count)]


class HoldingSampler:
    """Chooses the groups that were trained on already, and leaves the rest to another sampler."""

    def __init__(self, held: Sequence[int], rest: RandomSampler) -> None:
        self._held, self._rest = held, rest

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of `count` of them."""
        free = [candidate for candidate in candidates if candidate.key not in self._held]
        return [*self._held, *self._rest.pick(free, count - len(self._held))]


def check_admission_policy(policy: AdmissionPolicy, *, seed: int = 0, cases: int = 60) -> int:
    """Check an admission against its contract under random starts, completions, drops, consumption, plans and restarts.

    Args:
        policy: the policy.
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        The largest staleness that was consumed over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the admission breaks the contract; the message names the seed.
    """
    check_policy("admission", policy)
    oldest = 0
    for case in range(seed, seed + cases):
        drive = AdmissionDrive(policy, case)
        for _ in range(200):
            drive.step()
        drive.check_liveness()
        oldest = max(oldest, drive.oldest)
    return oldest


class AdmissionDrive:
    """One gate under random events, with a record of what it must remember: open groups and the trainer's version."""

    def __init__(self, policy: AdmissionPolicy, seed: int) -> None:
        self.where = f"seed {seed}, {policy!r}"
        self.random = random.Random(seed)
        self.batch = self.random.choice([1, 2, 3, 5])
        self.policy = policy
        self.gate: AdmissionGate = policy.gate(self.batch)
        self.sampler = RandomSampler(seed)
        self.version = 0
        self.next_group = 0
        self.open: dict[int, tuple[int, bool]] = {}
        self.completed: list[int] = []  # complete groups, in order of completion
        self.held: list[int] = []  # groups trained on before their batch
        self.oldest = 0
        assert policy.gate(self.batch).state() == self.gate.state(), f"{self.where}: a new gate is not empty"

    def step(self) -> None:
        """Do one random event."""
        chance = self.random.random()
        if chance < 0.45:
            self.start(
                self.random.choice([self.version, self.version, max(0, self.version - self.random.randrange(4))])
            )
        elif chance < 0.55:
            self.plan()
        elif chance < 0.85:
            self.complete_one()
        elif chance < 0.90:
            self.drop_one()
        elif chance < 0.92:
            self.train_early()
        elif chance < 0.94:
            self.misuse()
        elif chance < 0.96:
            self.restart()
        self.consume_if_ready()

    def start(self, version: int) -> bool:
        """Start a group if the gate allows it. The gate must refuse exactly the starts that its copy does not allow."""
        allowed = self.gate.tentative().allows(version)
        if not allowed:
            self.refuses(lambda: self.gate.start(self.next_group, version), "start beyond `allows`")
            return False
        self.gate.start(self.next_group, version)
        self.open[self.next_group] = (version, False)
        self.next_group += 1
        room = self.gate.room
        assert room is None or len(self.open) <= room, f"{self.where}: {len(self.open)} groups open, room for {room}"
        return True

    def plan(self) -> None:
        """Check that the gate allows the starts that a copy allows, and that forks and dropped copies change nothing."""
        before = self.gate.state()
        view = self.gate.tentative()
        taken: list[tuple[int, int]] = []
        for _ in range(self.random.randrange(1, 12)):
            version = max(0, self.version - self.random.randrange(3))
            group = self.next_group + len(taken)
            fork = view.fork()
            assert fork.allows(version) == view.allows(version), f"{self.where}: a fork says something else"
            if not view.allows(version):
                self.refuses(lambda: view.take(group, version), "take beyond `allows`")  # noqa: B023 - called at once
                continue
            fork.take(group, version)
            view.take(group, version)
            taken.append((group, version))
        assert self.gate.state() == before, f"{self.where}: planning changed the gate"
        if self.random.random() < 0.5:
            for group, version in taken:
                self.gate.start(group, version)
                self.open[group] = (version, False)
            self.next_group += len(taken)

    def complete_one(self) -> None:
        """Complete a random group in flight."""
        running = [group for group, (_, complete) in self.open.items() if not complete]
        if running:
            self.complete(self.random.choice(running))

    def complete(self, group: int) -> None:
        """Complete this group."""
        self.gate.complete(group)
        self.open[group] = (self.open[group][0], True)
        self.completed.append(group)

    def sweep(self) -> None:
        """Abort redundant groups, before anything is consumed."""
        for late in list(self.gate.surplus()):
            assert late in self.open, f"{self.where}: surplus {late} is not open"
            assert not self.open[late][1], f"{self.where}: surplus {late} is complete"
            self.drop(late)
        assert not self.gate.surplus(), f"{self.where}: surplus stays after it was dropped"

    def drop_one(self) -> None:
        """Drop a group, perhaps one that never started, but none that was trained on."""
        self.drop(self.random.choice([*(group for group in self.open if group not in self.held), self.next_group]))

    def train_early(self) -> None:
        """Train on trainable groups before their batch is ready (streamed training)."""
        trainable = self.check_trainable()
        free = [group for group in trainable if group not in self.held]
        if free and len(self.held) < self.batch - 1:
            self.held.append(self.random.choice(free))

    def check_trainable(self) -> Sequence[int]:
        """Check `trainable`: complete, within the bound, enough for a ready batch, and with all groups trained on early."""
        trainable = list(self.gate.trainable())
        assert len(set(trainable)) == len(trainable), f"{self.where}: trainable names a group twice: {trainable}"
        for group in trainable:
            assert self.open.get(group, (0, False))[1], f"{self.where}: trainable {group} is not a complete group"
            age, bound = self.version - self.open[group][0], self.gate.bound
            assert bound is None or age <= bound, (
                f"{self.where}: trainable {group} is {age} versions old, bound {bound}"
            )
        assert set(self.held) <= set(trainable), (
            f"{self.where}: {self.held} were trained on early, but trainable is now {trainable}"
        )
        if self.gate.ready():
            assert len(trainable) >= self.batch, f"{self.where}: a batch is ready and {trainable} are trainable"
        return trainable

    def drop(self, group: int) -> None:
        """Drop this group."""
        self.gate.drop(group)
        self.open.pop(group, None)
        self.completed = [other for other in self.completed if other != group]

    def misuse(self) -> None:
        """Check that wrong calls raise errors and change nothing."""
        self.refuses(lambda: self.gate.start(self.next_group, self.version + 1), "a version newer than the trainer's")
        assert not self.gate.tentative().allows(self.version + 1), f"{self.where}: allows a version of the future"
        self.refuses(lambda: self.gate.complete(self.next_group), "completing a group that never started")
        for group, (version, complete) in list(self.open.items())[:3]:
            self.refuses(lambda: self.gate.start(group, version), "a group started twice")  # noqa: B023 - called at once
            if complete:
                self.refuses(lambda: self.gate.complete(group), "a group completed twice")  # noqa: B023 - called at once
        if not self.gate.ready():
            self.refuses(lambda: self.gate.consume(self.candidates(), self.sampler), "consuming what is not ready")

    def restart(self) -> None:
        """Rebuild the gate from the existing groups; it must keep its guarantee and refuse only what it has to."""
        back = self.random.choice([0, 0, 1])
        version = max(0, self.version - back)
        refused = list(self.gate.reset(version, dict(self.open)))
        assert set(refused) <= set(self.open), f"{self.where}: reset refused {refused}, which it was not given"
        newer = {group for group, (started, _) in self.open.items() if started > version}
        assert newer <= set(refused), f"{self.where}: reset kept groups of versions that no longer exist: {newer}"
        self.version = version
        for group in refused:
            self.open.pop(group)
        self.completed = [group for group in self.completed if group in self.open]
        self.held = []  # a restarted trainer has lost them
        again = list(self.gate.reset(version, dict(self.open)))
        assert not again, f"{self.where}: reset refused {again} of what it had kept"

    def candidates(self) -> list[Candidate]:
        """Complete groups."""
        return [Candidate(group, self.open[group][0], order, (1.0,), 1) for order, group in enumerate(self.completed)]

    def consume_if_ready(self) -> None:
        """Do as a controller does: drop redundant and expired groups, then consume a batch if one is ready."""
        self.sweep()
        for group in list(self.gate.expired()):
            assert self.open.get(group, (0, False))[1], f"{self.where}: expired {group} is not a complete group"
            assert group not in self.held, f"{self.where}: expired {group} was trained on already"
            self.drop(group)
        if not self.gate.ready():
            return
        self.check_trainable()
        batch = list(self.gate.consume(self.candidates(), HoldingSampler(self.held, self.sampler)))
        assert set(self.held) <= set(batch), f"{self.where}: consumed {batch} without {self.held}, trained on before"
        self.held = []
        assert len(set(batch)) == len(batch) == self.batch, (
            f"{self.where}: consumed {batch}, expected {self.batch} groups"
        )
        for group in batch:
            assert self.open.get(group, (0, False))[1], f"{self.where}: consumed {group}, which is not complete"
            age = self.version - self.open[group][0]
            bound = self.gate.bound
            assert bound is None or age <= bound, f"{self.where}: consumed {group} {age} versions old, bound {bound}"
            self.oldest = max(self.oldest, age)
            self.open.pop(group)
        self.completed = [group for group in self.completed if group in self.open]
        self.version += 1
        self.sweep()

    def check_liveness(self) -> None:
        """Check that batches keep forming if all groups in flight end and new ones start at the trainer's version."""
        for _ in range(3):
            goal = self.version + 1
            for _ in range(1000):
                self.consume_if_ready()
                if self.version >= goal:
                    break
                self.start(self.version)
                self.complete_one()
            assert self.version >= goal, f"{self.where}: no batch forms any more; {str(self.gate.state())[:1000]}"

    def refuses(self, action: Callable[[], object], what: str) -> None:
        """Check that an action raises a typed error and changes nothing."""
        before = self.gate.state()
        raised: Exception | None = None
        try:
            action()
        except Exception as error:
            raised = error
        assert raised is not None, f"{self.where}: accepted {what}"
        assert isinstance(raised, TailraceError), f"{self.where}: {what}: {raised!r} is not a typed error"
        assert self.gate.state() == before, f"{self.where}: {what} changed the gate"
