"""A transactional overlay of the staleness manager, for planners that try many placements in one pass."""

from __future__ import annotations

from typing import Generic, Protocol

from tailrace.staleness.buffers import Key, KeyIn
from tailrace.staleness.errors import (
    DuplicateError,
    OutdatedForkError,
    StalenessBoundExceeded,
    VersionError,
    plain_version,
)


class Forked(Protocol[KeyIn]):
    """The manager under an overlay. See `StalenessManager`."""

    @property
    def bound(self) -> int:
        """Most versions by which the trainer may be ahead."""
        ...

    @property
    def version(self) -> int:
        """The trainer's version."""
        ...

    @property
    def changes(self) -> int:
        """Number of operations that changed the manager so far."""
        ...

    def __contains__(self, key: object) -> bool: ...

    def reserve(self, key: KeyIn, version: int) -> int:
        """Start a trajectory."""
        ...

    def describe(self) -> str:
        """The state in one line."""
        ...


class Tentative(Generic[Key]):
    """Reserves that are only tried. Commit them, or drop the object to leave the manager unchanged.

    A reserve moves no entry, so the overlay needs only the number of empty entries of each buffer.

    Args:
        manager: the manager that this is a fork of.
        empty: empty entries of each buffer, earliest first.
        parent: the overlay that this is a fork of, if any, and the number of its reserves at that moment.
    """

    __slots__ = ("_bound", "_changes", "_empty", "_manager", "_parent", "_seen", "_taken", "_version")

    def __init__(
        self,
        manager: Forked[Key],
        empty: tuple[int, ...],
        parent: tuple[Tentative[Key], int] | None = None,
    ) -> None:
        self._manager = manager
        self._empty = list(empty)
        self._parent = parent
        self._bound = manager.bound
        self._version: int = manager.version if parent is None else parent[0]._version
        self._changes: int = manager.changes if parent is None else parent[0]._changes
        self._taken: dict[Key, tuple[int, int]] = {}  # key -> its place in the order, its version

    def allows(self, version: int) -> bool:
        """Whether one more trajectory may start at a version, after those that were taken here.

        Raises:
            VersionError: the version is no whole number.
        """
        if type(version) is not int:
            version = plain_version(version)
        return self._latest(version) is not None

    def take(self, key: Key, version: int) -> int:
        """Reserve in the overlay alone.

        Returns:
            The version of the buffer in which the entry would be.

        Raises:
            StalenessBoundExceeded: no buffer has an empty entry for that version.
            VersionError: the version is no whole number, negative or newer than the trainer's.
            DuplicateError: the key has an entry already, here or in the manager.
        """
        if type(version) is not int:
            version = plain_version(version)
        if not 0 <= version <= self._version:
            raise VersionError(
                f"cannot take {key!r}: found version {version!r}, expected 0 to the trainer's {self._version}"
            )
        if key in self._manager or self._has(key):
            raise DuplicateError(f"cannot take {key!r}: found an entry of it, expected a new key")
        slot = self._latest(version)
        if slot is None:
            raise StalenessBoundExceeded(
                f"cannot take {key!r} at version {version}: found empty entries {self._empty} in buffers {self._version} to "
                f"{self._version + self._bound}, expected one up to buffer {version + self._bound}"
            )
        self._empty[slot] -= 1
        self._taken[key] = (len(self._taken), version)
        return self._version + slot

    def fork(self) -> Tentative[Key]:
        """An overlay of this overlay as it is now. Its commit also reserves what was taken here before the fork."""
        return Tentative(self._manager, tuple(self._empty), (self, len(self._taken)))

    def commit(self) -> list[Key]:
        """Reserve the taken keys in the manager, in the same buffers.

        Returns:
            The keys, in the order in which they were taken.

        Raises:
            OutdatedForkError: the manager changed since the fork, or this was committed before. No key is reserved.
        """
        if self._manager.changes != self._changes:
            raise OutdatedForkError(
                f"cannot commit {len(self._taken)} reserves: found a manager {self._manager.changes - self._changes} changes "
                f"after the fork, expected none; {self._manager.describe()}"
            )
        taken = self._order(len(self._taken))
        for key, version in taken:
            self._manager.reserve(key, version)
        return [key for key, _ in taken]

    def _latest(self, version: int) -> int | None:
        if not 0 <= version <= self._version:
            return None
        empty = self._empty
        for slot in range(version + self._bound - self._version, -1, -1):
            if empty[slot]:
                return slot
        return None

    def _has(self, key: Key) -> bool:
        if key in self._taken:
            return True
        link = self._parent
        while link is not None:
            overlay, count = link
            place = overlay._taken.get(key)
            if place is not None and place[0] < count:
                return True
            link = overlay._parent
        return False

    def _order(self, count: int) -> list[tuple[Key, int]]:
        before = self._parent[0]._order(self._parent[1]) if self._parent is not None else []
        return before + [(key, version) for key, (place, version) in self._taken.items() if place < count]
