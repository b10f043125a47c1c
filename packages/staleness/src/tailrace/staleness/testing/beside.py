"""Runs the staleness manager and its slow reference together and compares every answer and entry.

It also checks what must always hold: consumed groups are within the bound, by the versions at which their members really ran;
the number of tracked keys is limited; `can_reserve` agrees with a feasibility oracle; members and partial rollout do not
change the buffers. Tests drive it by `random_step` or by a property-testing library.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from tailrace.staleness.buffers import Entry
from tailrace.staleness.errors import RedundantError
from tailrace.staleness.group_tracker import GroupTracker
from tailrace.staleness.manager import StalenessManager
from tailrace.staleness.testing.reference import ReferenceManager


def can_reserve_by_hall(reference: ReferenceManager, version: int) -> bool:
    """Whether one more key fits if reserved entries may be rearranged: Hall's condition on deadlines V + bound.

    Occupied entries stay in place. A ready buffer has room for its own entries only.
    """
    jobs = [row.version for row in reference.rows if not row.occupied] + [version]
    room = 0
    for buffer in reference.buffers():
        if reference.complete(buffer):
            room += len(reference.inside(buffer, occupied=False))
        else:
            room += reference.batch_size + reference.surplus_size - len(reference.inside(buffer, occupied=True))
        if sum(job + reference.bound <= buffer for job in jobs) > room:
            return False
    return version + reference.bound >= reference.version


class BesideReference:
    """One manager with groups, its reference, and the versions that members ran at.

    Args:
        bound: the manager's bound.
        batch_size: groups in a batch.
        surplus: entries of each buffer beyond a batch.
        needed: number of complete members that completes a group.
        size: members of a group.
    """

    def __init__(self, *, bound: int, batch_size: int, surplus: int = 0, needed: int = 1, size: int = 1) -> None:
        self.manager: StalenessManager[int] = StalenessManager(bound, batch_size, 0, surplus)
        self.tracker: GroupTracker[int] = GroupTracker(self.manager, needed=needed, size=size)
        self.reference = ReferenceManager(bound, batch_size, 0, surplus)
        self.ran_at: dict[int, list[int]] = {}
        self.groups = 0
        self.members = 0
        self.operations = 0
        self.oldest = 0

    def start(self, version: int) -> bool:
        """Start a new group if it may start at this version."""
        allowed = self.reference.can_reserve(version)
        assert self.manager.can_reserve(version) == allowed == can_reserve_by_hall(self.reference, version), version
        if allowed:
            group = self.groups
            self.groups += 1
            before = self._places()
            self.tracker.route(group, self._member(), version)
            buffer = self.reference.reserve(group, version)
            after = self._places()
            assert after.pop(group) == (buffer, version, False)
            assert after == before, "a reserve moved others"
            self.ran_at[group] = [version]
        self.check()
        return allowed

    def route_member(self, group: int, version: int, *, again: bool) -> None:
        """Start another member of a group, or resume one elsewhere at this version (partial rollout, migration)."""
        running = self.tracker.running(group)
        finished = len(self.tracker.finished(group))
        if not running and again:
            return
        if not again and (len(running) + finished >= self.tracker.size or finished >= self.tracker.needed):
            return
        before = self.manager.to_state()
        version = max(version, self.tracker.version(group))
        self.tracker.route(group, running[0] if again else self._member(), version)
        self.ran_at[group].append(version)
        assert self.manager.to_state() == before, "routing a member changed the buffers"

    def finish_member(self, group: int) -> None:
        """Finish one member of a group; with the last one needed, the group occupies its entry."""
        running = self.tracker.running(group)
        if not running:
            if len(self.tracker.finished(group)) < self.tracker.needed:
                self.tracker.route(group, self._member(), self.manager.version)
            return
        last = len(self.tracker.finished(group)) + 1 == self.tracker.needed
        before = self.manager.to_state()
        if not last:
            self.tracker.finish(group, running[0])
            assert self.manager.to_state() == before, "finishing a member changed the buffers"
            return
        try:
            expected = self.reference.occupy(group)
        except RedundantError:
            try:
                self.tracker.finish(group, running[0])
            except RedundantError:
                assert self.manager.to_state() == before, "an error changed the buffers"
                self.drop(group)
                return
            raise AssertionError("a redundant group was accepted") from None
        surplus = self.tracker.finish(group, running[0])
        assert surplus == running[1:]
        assert self._places()[group] == (expected, self.tracker.version(group), True)
        self.check()

    def lose_member(self, group: int) -> None:
        """Lose one member of a group, as if its replica failed."""
        running = self.tracker.running(group)
        if running:
            before = self.manager.to_state()
            self.tracker.lose(group, running[-1])
            assert self.manager.to_state() == before, "losing a member changed the buffers"

    def drop(self, group: int) -> None:
        """Abort or filter a group."""
        if self.manager.occupied(group):
            self.reference.filter(group)
        else:
            self.reference.abort(group)
        self.tracker.drop(group)
        del self.ran_at[group]
        self.check()

    def consume(self) -> bool:
        """Retire a batch, if one is ready."""
        assert self.manager.ready() == self.reference.ready()
        if not self.reference.ready():
            return False
        version = self.manager.version
        assert self.tracker.surplus() == self.reference.surplus()
        late = [row.key for row in self.reference.inside(version, occupied=False)]
        batch, members = self.tracker.consume()
        assert list(batch) == self.reference.consume()
        assert len(batch) == self.manager.batch_size
        assert bool(members) <= bool(late)
        assert all(group not in self.tracker for group in late)
        for group in batch:
            age = version - min(self.ran_at[group])
            assert age <= self.manager.bound, f"group {group} was {age} versions old, bound {self.manager.bound}"
            self.oldest = max(self.oldest, age)
        for group in (*batch, *late):
            del self.ran_at[group]
        self.check()
        return True

    def plan(self, versions: list[int], fork_at: int, commit: bool) -> None:
        """Try reserves in an overlay, half of them in a fork of it; then commit all, or drop them."""
        before = self.manager.to_state()
        copied = copy.deepcopy(self.reference)
        view = self.manager.fork()
        taken: dict[int, int] = {}
        for place, version in enumerate(versions):
            if place == fork_at:
                view = view.fork()
            assert view.allows(version) == copied.can_reserve(version)
            if copied.can_reserve(version):
                group = self.groups + len(taken)
                assert view.take(group, version) == copied.reserve(group, version)
                taken[group] = version
        assert self.manager.to_state() == before, "an overlay changed the manager"
        if commit:
            # These groups were reserved in the manager, so tell the tracker, as `route` does for a planner's placements.
            for group, version in taken.items():
                self.tracker.route(group, self._member(), version)
                self.ran_at[group] = [version]
            self.groups += len(taken)
            self.reference = copied
        self.check()

    def round_trip(self) -> None:
        """Store the manager, restore it and continue with the restored one."""
        state = self.manager.to_state()
        restored: StalenessManager[int] = StalenessManager.from_state(json.loads(json.dumps(state)))
        assert restored.to_state() == state
        self.manager = self.tracker.manager = restored

    def rebuild(self) -> None:
        """Check that a reset with its own entries finds a place for all; with a surplus, for all except redundant ones."""
        entries = self.entries()
        other: StalenessManager[int] = StalenessManager(
            self.manager.bound, self.manager.batch_size, 0, self.manager.surplus_size
        )
        refused = other.reset(self.manager.version, entries)
        assert not refused or self.manager.surplus_size, refused
        assert not [entry for entry in entries if entry.occupied and entry.key in refused], (
            "a complete group was refused"
        )
        assert len(other) == len(entries) - len(refused)
        StalenessManager.from_state(other.to_state())

    def entries(self) -> list[Entry[int]]:
        """The entries of all buffers."""
        return [entry for buffer in self.reference.buffers() for entry in self.manager.entries(buffer)]

    def check(self) -> None:
        """Check that both hold the same entries, and no more than allowed."""
        self.operations += 1
        assert self.manager.version == self.reference.version
        assert len(self.manager) <= (self.manager.bound + 1) * (self.manager.batch_size + self.manager.surplus_size)
        assert len(self.manager) == len(self.reference.rows)
        if self.operations % 4 == 0 or self.operations < 1000:
            for buffer in self.reference.buffers():
                mine = [(entry.key, entry.version, entry.occupied) for entry in self.manager.entries(buffer)]
                assert mine == self.reference.entries(buffer), self.manager.describe()

    def random_step(self, numbers: random.Random) -> None:
        """Do one random operation."""
        chance = numbers.random()
        version = self.manager.version - (numbers.randrange(self.manager.bound + 2) if numbers.random() < 0.5 else 0)
        version = max(0, version)
        groups = list(self.ran_at)
        if chance < 0.35 or not groups:
            self.start(version)
        elif chance < 0.75:
            self.finish_member(numbers.choice(groups))
        elif chance < 0.80:
            self.route_member(numbers.choice(groups), self.manager.version, again=numbers.random() < 0.5)
        elif chance < 0.82:
            self.lose_member(numbers.choice(groups))
        elif chance < 0.87:
            self.drop(numbers.choice(groups))
        elif chance < 0.90:
            versions = [max(0, self.manager.version - numbers.randrange(3)) for _ in range(numbers.randrange(1, 8))]
            self.plan(versions, numbers.randrange(8), numbers.random() < 0.5)
        elif chance < 0.91:
            self.round_trip()
        elif chance < 0.915:
            self.rebuild()
        else:
            self.consume()

    def _member(self) -> int:
        self.members += 1
        return self.members

    def _places(self) -> dict[Any, tuple[int, int, bool]]:
        return {
            entry.key: (buffer, entry.version, entry.occupied)
            for buffer in self.reference.buffers()
            for entry in self.manager.entries(buffer)
        }
