"""Mistakes of the paper's pseudocode, planted on purpose: a small rollout must find each within a bounded number of steps.

The rollout has replicas that lag behind the trainer by different amounts, groups of two members, and a planner that places
members of a pool on replicas in one pass, as StaleFlow's algorithms 2 and 3 do.
"""

import random
from dataclasses import dataclass

import pytest

from tailrace.staleness import GroupTracker, StalenessManager

BOUND = 1
BATCH = 3
MEMBERS = 2
PASSES = 400
SLOTS = 3  # trajectories that a replica is given in one pass


class ViolationError(AssertionError):
    """What the audit found."""


@dataclass
class Waiting:
    """A member in the pool; `version` is V_traj of algorithm 2, None for an initial trajectory."""

    group: int
    member: int
    version: int | None = None


class Planner:
    """Algorithm 2 as a pure predicate, over an overlay that counts what this pass placed."""

    def place(self, pool, replicas, tracker):
        view = tracker.manager.fork()
        started = {}
        load = [0] * len(replicas)
        placements = []
        for waiting in pool:
            for index, version in enumerate(replicas):
                if (
                    load[index] < SLOTS
                    and (start := self.routable(waiting, version, tracker, view, started)) is not None
                ):
                    load[index] += 1
                    placements.append((waiting, version, start))
                    break
        return placements

    def routable(self, waiting, version, tracker, view, started):
        """None if not, otherwise whether it starts its group, which reserves an entry for it."""
        if waiting.group in tracker:
            return False if tracker.can_route(waiting.group, version) else None
        if waiting.group in started:
            return False if version >= started[waiting.group] else None
        if not self.verify(waiting, version, tracker, view):
            return None
        started[waiting.group] = version
        return True

    def verify(self, waiting, version, tracker, view):
        if not view.allows(version):
            return False
        view.take(waiting.group, version)
        return True


class AssignsBeforeVerifying(Planner):
    """Algorithm 2, line 2: a failed verify leaves V_traj behind, and the next replica skips the check."""

    def routable(self, waiting, version, tracker, view, started):
        if waiting.version is not None and waiting.group not in started:
            return False if version >= waiting.version else None
        waiting.version = version
        return super().routable(waiting, version, tracker, view, started)


class VerifiesWithoutReserving(Planner):
    """Algorithm 3 verifies against the manager alone, which does not know what this pass has placed."""

    def verify(self, waiting, version, tracker, view):
        return tracker.manager.can_reserve(version)


class LowersTheGroup(GroupTracker):
    """The version of a group is the minimum over its members, also after its entry was reserved."""

    def can_route(self, group, version):
        return True if group in self else super().can_route(group, version)

    def route(self, group, member, version):
        if group in self and version < self.version(group):
            self._groups[group].version = version
        return super().route(group, member, version)


class Rollout:
    def __init__(self, planner, tracker_class, seed):
        self.numbers = random.Random(seed)
        self.planner = planner
        self.manager = StalenessManager(BOUND, BATCH)
        self.tracker = tracker_class(self.manager, needed=MEMBERS)
        self.replicas = [0, 0, 0]
        self.pool = []
        self.launched = 0
        self.running = {}  # (group, member) -> the version that it runs at
        self.ran_at = {}  # group -> the versions that its members ran at
        self.consumed = 0

    def one_pass(self):
        while len(self.pool) < 12:
            self.pool += [Waiting(self.launched, member) for member in range(MEMBERS)]
            self.launched += 1
        for waiting, version, start in self.planner.place(list(self.pool), list(self.replicas), self.tracker):
            self.pool.remove(waiting)
            self.issue(waiting, version, start)
        self.audit()
        for group, member in list(self.running):
            if self.numbers.random() < 0.5:
                continue
            del self.running[group, member]
            if group in self.tracker:
                self.tracker.finish(group, member)
        if self.manager.ready():
            self.consume()
        for index, version in enumerate(self.replicas):
            if self.numbers.random() < 0.3:
                self.replicas[index] = self.numbers.randint(version, self.manager.version)
        self.numbers.shuffle(self.replicas)

    def issue(self, waiting, version, start):
        """Routing commits. Only what starts a group reserves: the rest has its entry, or so the planner says."""
        if start and not self.manager.can_reserve(version):
            raise ViolationError(f"group {waiting.group} was placed at version {version} with no entry left")
        if start or waiting.group in self.tracker:
            self.tracker.route(waiting.group, waiting.member, version)
        self.running[waiting.group, waiting.member] = version
        self.ran_at.setdefault(waiting.group, []).append(version)

    def audit(self):
        for group, member in self.running:
            if group not in self.tracker:
                raise ViolationError(f"member {member} of group {group} runs without a reserved entry")

    def consume(self):
        version = self.manager.version
        batch, _ = self.tracker.consume()
        for group in batch:
            age = version - min(self.ran_at.pop(group))
            if age > BOUND:
                raise ViolationError(f"group {group} is {age} versions old at consumption, bound {BOUND}")
        self.consumed += len(batch)


def passes_until_violation(planner, tracker_class, seed):
    rollout = Rollout(planner, tracker_class, seed)
    for count in range(PASSES):
        try:
            rollout.one_pass()
        except ViolationError as violation:
            return count, str(violation)
    return None, rollout.consumed


@pytest.mark.parametrize("seed", range(10))
def test_the_right_planner_and_tracker_never_violate(seed):
    violated, consumed = passes_until_violation(Planner(), GroupTracker, seed)
    assert violated is None
    assert consumed > PASSES / 4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("planner", "tracker_class", "finding"),
    [
        pytest.param(AssignsBeforeVerifying(), GroupTracker, "without a reserved entry", id="assigns before verifying"),
        pytest.param(VerifiesWithoutReserving(), GroupTracker, "with no entry left", id="verifies without reserving"),
        pytest.param(Planner(), LowersTheGroup, "versions old at consumption", id="lowers the group"),
    ],
)
def test_a_planted_mistake_is_found(planner, tracker_class, finding, seed):
    violated, found = passes_until_violation(planner, tracker_class, seed)
    assert violated is not None, f"nothing found in {PASSES} passes, seed {seed}"
    assert finding in found
