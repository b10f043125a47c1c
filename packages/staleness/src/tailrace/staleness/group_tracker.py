"""Groups on staleness buffers: one entry per group, occupied when enough of its members are complete (StaleFlow, 4.3).

For who drives a `StalenessManager` with members of his own. A run of Tailrace has its groups and their surplus samples in the
controller's ledger, and its manager's keys are whole groups.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic

from tailrace.staleness.buffers import Key
from tailrace.staleness.errors import DuplicateError, StateError, UnknownEntryError, VersionError, whole
from tailrace.staleness.manager import StalenessManager
from tailrace.staleness.restore import broken

Name = Hashable


@dataclass(slots=True)
class _Group:
    version: int
    running: dict[Name, None] = field(default_factory=dict)
    finished: dict[Name, None] = field(default_factory=dict)


class GroupTracker(Generic[Key]):
    """The members of groups in flight, for a manager whose keys are the groups.

    When the first member of a group is routed, the group's version is fixed and its entry reserved. Every later routing, of
    another member or of one that resumes elsewhere, needs a replica that is at least as new. So the group's version stays the
    oldest one in it; a minimum over members could fall after the reservation and break the bound.

    Args:
        manager: the manager. Reserve, occupy, abort, filter and consume groups only through the tracker.
        needed: number of complete members that completes a group.
        size: most members of a group; more than `needed` is group-level redundancy.

    Raises:
        LimitError: a size is out of its range.
    """

    def __init__(self, manager: StalenessManager[Key], *, needed: int, size: int | None = None) -> None:
        self.manager = manager
        self.needed = whole("needed", needed, least=1)
        self.size = needed if size is None else whole("size", size, least=needed)
        self._groups: dict[Key, _Group] = {}

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def version(self, group: Key) -> int:
        """The version that was fixed when the group started.

        Raises:
            UnknownEntryError: the group has not started.
        """
        return self._get(group).version

    def running(self, group: Key) -> list[Name]:
        """Members in flight.

        Raises:
            UnknownEntryError: the group has not started.
        """
        return list(self._get(group).running)

    def finished(self, group: Key) -> list[Name]:
        """Complete members, which are trained on, in order of completion.

        Raises:
            UnknownEntryError: the group has not started.
        """
        return list(self._get(group).finished)

    def can_route(self, group: Key, version: int) -> bool:
        """Whether a member may run on a replica of this version. Changes nothing."""
        known = self._groups.get(group)
        if known is None:
            return group not in self.manager and self.manager.can_reserve(version)
        return known.version <= version <= self.manager.version

    def route(self, group: Key, member: Name, version: int) -> int:
        """Start or resume a member on a replica of this version (resume: partial rollout, migration).

        The first member of a group fixes its version and reserves its entry; the others do not change the buffers.

        Returns:
            The version of the group.

        Raises:
            StalenessBoundExceeded: the group is new and its version has no empty entry.
            VersionError: the replica is older than the group or newer than the trainer.
            DuplicateError: the member is complete, or the group has all its members.
        """
        known = self._groups.get(group)
        if known is None:
            self.manager.reserve(group, version)
            self._groups[group] = _Group(version, {member: None})
            return version
        if not known.version <= version <= self.manager.version:
            raise VersionError(
                f"cannot route {member!r} of group {group!r}: found a replica of version {version}, expected "
                f"{known.version}, which is the group's, to {self.manager.version}, which is the trainer's"
            )
        if member in known.running:
            return known.version
        if member in known.finished:
            raise DuplicateError(f"cannot route {member!r} of group {group!r}: found it complete, expected a new one")
        if len(known.running) + len(known.finished) >= self.size or len(known.finished) >= self.needed:
            raise DuplicateError(
                f"cannot route {member!r} of group {group!r}: found {len(known.running)} members running and "
                f"{len(known.finished)} complete, expected room among {self.size}, of which {self.needed} are needed"
            )
        known.running[member] = None
        return known.version

    def finish(self, group: Key, member: Name) -> list[Name]:
        """Note that a member is complete and rewarded. With the last one needed, the group occupies an entry.

        Returns:
            Members that still run and are no longer needed; abort them (group-level redundancy).

        Raises:
            UnknownEntryError: the member is not in flight.
            RedundantError: this completes the group, but its batch is complete without it; `drop` the group.
        """
        known = self._get(group)
        if member not in known.running:
            raise UnknownEntryError(
                f"cannot finish {member!r} of group {group!r}: found {list(known.running)} in flight, expected it among them"
            )
        surplus: list[Name] = []
        if len(known.finished) + 1 == self.needed:
            self.manager.occupy(group)
            surplus = [name for name in known.running if name != member]
            known.running = {}
        known.running.pop(member, None)
        known.finished[member] = None
        return surplus

    def lose(self, group: Key, member: Name) -> None:
        """Forget a member in flight that failed. It, or another in its place, may be routed again. Buffers do not change.

        Raises:
            UnknownEntryError: the member is not in flight.
        """
        known = self._get(group)
        if member not in known.running:
            raise UnknownEntryError(
                f"cannot lose {member!r} of group {group!r}: found {list(known.running)} in flight, expected it among them"
            )
        del known.running[member]

    def drop(self, group: Key) -> list[Name]:
        """Abort a group in flight, or filter a complete one.

        Returns:
            Members that still run; abort them.

        Raises:
            UnknownEntryError: the group has not started.
        """
        known = self._get(group)
        if len(known.finished) >= self.needed:
            self.manager.filter(group)
        else:
            self.manager.abort(group)
        del self._groups[group]
        return list(known.running)

    def surplus(self) -> list[Key]:
        """Groups in flight whose batch is complete without them; `drop` them (batch-level redundancy)."""
        return self.manager.surplus()

    def consume(self) -> tuple[dict[Key, list[Name]], list[Name]]:
        """Retire the earliest buffer.

        Returns:
            The complete members of each group of the batch, and the running members of redundant groups, to be aborted.

        Raises:
            NotReadyError: the buffer is not ready.
            UnknownEntryError: it has an entry of a group that the tracker does not know.
        """
        entries = self.manager.entries(self.manager.version)
        if self.manager.ready():
            for entry in entries:
                self._get(entry.key)  # before anything moves
        late = [entry.key for entry in entries if not entry.occupied]
        batch = {group: list(self._groups.pop(group).finished) for group in self.manager.consume()}
        return batch, [member for group in late for member in self._groups.pop(group).running]

    def to_state(self) -> dict[str, Any]:
        """The whole state, the manager's too, as plain data: JSON, if groups and members are strings or integers."""
        return {
            "manager": self.manager.to_state(),
            "needed": self.needed,
            "size": self.size,
            "groups": [[key, list(group.running), list(group.finished)] for key, group in self._groups.items()],
        }

    @classmethod
    def from_state(cls, state: Any) -> GroupTracker[Key]:
        """A tracker, and its manager, with a state that `to_state` returned.

        Members that ran then are in flight still. `lose` those that do not, and route them again.

        Raises:
            StateError: no tracker could have written this state.
        """
        try:
            manager: StalenessManager[Key] = StalenessManager.from_state(state["manager"])
            tracker = cls(manager, needed=state["needed"], size=state["size"])
            stored = {key: (list(running), list(finished)) for key, running, finished in state["groups"]}
            count = len(state["groups"])
            members = {key: {*running, *finished} for key, (running, finished) in stored.items()}
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, StateError):
                raise
            raise broken(f"{type(error).__name__}: {error}", "GroupTracker") from error
        entries = {
            key: (version, occupied) for buffer in state["manager"]["buffers"] for key, version, occupied in buffer
        }
        if len(stored) < count or stored.keys() != entries.keys():
            raise broken(f"the groups {list(stored)!r:.80} beside the entries {list(entries)!r:.80}", "GroupTracker")
        for key, (running, finished) in stored.items():
            version, occupied = entries[key]
            twice = len(members[key]) < len(running) + len(finished)
            full = len(finished) == tracker.needed and not running
            if twice or len(members[key]) > tracker.size or occupied is not full or len(finished) > tracker.needed:
                kind = "occupied" if occupied else "reserved"
                found = (
                    f"{len(running)} members of {key!r} running and {len(finished)} complete in an entry that is {kind}"
                )
                raise broken(found, "GroupTracker")
            tracker._groups[key] = _Group(version, dict.fromkeys(running), dict.fromkeys(finished))
        return tracker

    def _get(self, group: Key) -> _Group:
        known = self._groups.get(group)
        if known is None:
            raise UnknownEntryError(f"found no group {group!r} in flight, expected one; {self.manager.describe()}")
        return known
