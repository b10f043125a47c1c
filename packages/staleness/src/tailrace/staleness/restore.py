"""Puts existing entries back into a manager, after a crash or from a stored state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tailrace.staleness.buffers import Entry, Key, KeyIn, Slots
from tailrace.staleness.errors import RedundantError, StateError


class Reserving(Protocol[KeyIn]):
    """A manager into which entries can be placed. See `StalenessManager`."""

    def can_reserve(self, version: int) -> bool:
        """Whether one more key may start at a version."""
        ...

    def reserve(self, key: KeyIn, version: int) -> int:
        """Start a trajectory."""
        ...

    def occupy(self, key: KeyIn) -> int:
        """Complete it."""
        ...

    def abort(self, key: KeyIn) -> None:
        """Drop it before it is complete."""
        ...


def place_all(manager: Reserving[Key], entries: Sequence[Entry[Key]], *, complete_first: bool = False) -> set[Key]:
    """Reserve and occupy in an empty manager, earliest deadline first, complete entries before those in flight.

    Args:
        manager: an empty manager.
        entries: the entries to place.
        complete_first: occupy complete entries before any other is reserved. Otherwise all are reserved first. That finds a
            place for every entry that can have one, but with a surplus it may make complete entries redundant.

    Returns:
        Keys without a place.
    """
    complete = sorted((entry for entry in entries if entry.occupied), key=lambda entry: entry.version)
    running = sorted((entry for entry in entries if not entry.occupied), key=lambda entry: entry.version)
    refused: set[Key] = set()
    placed: list[Entry[Key]] = []

    def occupy(entry: Entry[Key]) -> None:
        try:
            manager.occupy(entry.key)
        except RedundantError:
            manager.abort(entry.key)
            refused.add(entry.key)

    for entry in (*complete, *running):
        if not manager.can_reserve(entry.version):
            refused.add(entry.key)
            continue
        manager.reserve(entry.key, entry.version)
        if entry.occupied and complete_first:
            occupy(entry)
        elif entry.occupied:
            placed.append(entry)
    for entry in placed:
        occupy(entry)
    return refused


def broken(found: str, writer: str = "StalenessManager") -> StateError:
    """The error for a state that its writer could not have written."""
    return StateError(f"stored staleness state: found {found}, expected what {writer}.to_state wrote")


def read_state(slots: Slots[Key], state: Any) -> None:
    """Fill empty slots from a stored state, each entry in its former place.

    Raises:
        StateError: an entry cannot have been in its stated place.
    """
    buffers = state.get("buffers")
    if not isinstance(buffers, list) or len(buffers) != slots.bound + 1:
        raise broken(f"buffers={buffers!r:.80}")
    for slot, entries in enumerate(buffers):
        if not isinstance(entries, list):
            raise broken(f"{entries!r:.80} in place of a buffer's entries")
        buffer = slots.version + slot
        for entry in entries:
            try:
                key, version, occupied = entry
                known = key in slots.where
            except (TypeError, ValueError) as error:
                raise broken(f"entry {entry!r:.80}") from error
            if known:
                raise broken(f"key {key!r} twice")
            if not isinstance(version, int) or not isinstance(occupied, bool):
                raise broken(f"entry {entry!r:.80}")
            if not max(0, buffer - slots.bound) <= version <= slots.version:
                raise broken(f"version {version} of {key!r} in buffer {buffer} with the trainer at {slots.version}")
            slots.put(key, version, occupied, slot)
        held = slots.buffers[slot]
        if held.occupied_count > slots.batch_size or held.occupied_count + held.reserved_count > slots.size:
            raise broken(
                f"{held.occupied_count} occupied and {held.reserved_count} reserved entries in buffer {buffer}"
            )
    check_settled(slots)


def check_settled(slots: Slots[Key]) -> None:
    """Check invariants I1 and I2 of slots (see `tailrace.staleness.buffers`).

    Raises:
        StateError: one of them does not hold.
    """
    last = slots.filled.bit_length() - 1
    if slots.open & ((1 << max(0, last)) - 1):
        raise broken(f"an empty entry before an occupied one in buffer {slots.version + last}")
    for deadline, held in enumerate(slots.holds):
        reachable = slots.open & ((2 << deadline) - 1)
        if held and reachable >> ((held & -held).bit_length()):
            raise broken(f"a reserved entry of version {deadline + slots.version - slots.bound} before an empty one")
