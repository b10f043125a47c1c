"""The public state of a staleness buffer: its entries and its lifecycle."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
KeyIn = TypeVar("KeyIn", bound=Hashable, contravariant=True)  # for protocols that only take keys


class BufferState(StrEnum):
    """Lifecycle of a staleness buffer (StaleFlow, section 4.2)."""

    WAITING = "waiting"
    """It has empty entries."""
    READY = "ready"
    """A batch of its entries is occupied, so it may be consumed."""
    STUCK = "stuck"
    """It has no empty entry, and waits for reserved ones to complete."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[Key]):
    """One entry of a staleness buffer.

    Args:
        key: the trajectory, or the group where groups are used.
        version: the oldest version that it may have been generated with (V_traj).
        occupied: whether it is complete (occupied) or in flight (reserved).
    """

    key: Key
    version: int
    occupied: bool
