"""Axis admission: a strict bound by staleness buffers (StaleFlow). Plugin ``bounded``.

When a batch is trainable is decided by the buffers: see `tailrace.staleness.manager`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tailrace.contracts import AdmissionGate, AdmissionPolicy, Candidate, Facts, Sampler, Tried
from tailrace.staleness.buffers import Entry
from tailrace.staleness.counting import in_order
from tailrace.staleness.errors import LimitError, whole
from tailrace.staleness.manager import StalenessManager
from tailrace.staleness.tentative import Tentative


@dataclass(frozen=True, slots=True)
class Bounded(AdmissionPolicy):
    """A group starts only if a batch that will be consumed in time has a place for it, in whatever order groups complete.

    Guarantees: every consumed group started at most `bound` versions before the trainer's version at consumption; no complete
    group is dropped for its age; at most (bound + 1) * (batch + surplus) groups are open. Short groups do not wait for
    long ones that may be trained on later.
    Does not guarantee: progress if a group in flight never ends. Its batch waits for it until it is dropped; see `patience_s`.

    Args:
        bound: eta of StaleFlow, 0 or more.
        surplus: groups started for each batch beyond those that it needs; late ones are aborted (section 4.3). Short
            groups are then trained on more often than long ones.
        patience_s: seconds that training waits for groups whose places complete ones of later batches could take, before they
            are dropped (section 4.3). Their prompts come again, if the batching policy says so. None: for ever.

    Raises:
        LimitError: a value is out of its range.
    """

    bound: Annotated[int, Tried((0, 1, 2, 3))] = 1
    surplus: int = 0
    patience_s: Annotated[float | None, Tried((None, None, 0.1, 2.0))] = None

    def __post_init__(self) -> None:
        whole("bound", self.bound)
        whole("surplus", self.surplus)
        if self.patience_s is not None and not 0 < self.patience_s < math.inf:
            raise LimitError(
                f"found patience_s={self.patience_s!r}, expected seconds above 0, or none to wait for ever"
            )

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """Room for the surplus groups of batching."""
        return {"surplus": facts.surplus_groups}

    @property
    def surplus_groups(self) -> int:
        """Its surplus."""
        return self.surplus

    def gate(self, batch_groups: int) -> BoundedGate:
        """A gate with no group started and the trainer at version 0.

        Raises:
            LimitError: `batch_groups` is below 1.
        """
        return BoundedGate(StalenessManager(self.bound, batch_groups, 0, self.surplus), self.patience_s)


class BufferTentative:
    """A fork of the staleness manager as a `TentativeAdmission`."""

    __slots__ = ("_fork",)

    def __init__(self, fork: Tentative[int]) -> None:
        self._fork = fork

    def allows(self, version: int) -> bool:
        """Whether one more group may start at a version."""
        return self._fork.allows(version)

    def take(self, group: int, version: int) -> None:
        """Count a group as started.

        Raises:
            StalenessError: as `StalenessManager.reserve` would raise.
        """
        self._fork.take(group, version)

    def fork(self) -> BufferTentative:
        """An independent copy."""
        return BufferTentative(self._fork.fork())


class BoundedGate(AdmissionGate):
    """An `AdmissionGate` over a staleness manager. `patience_s` is that of `Bounded`."""

    def __init__(self, manager: StalenessManager[int], patience_s: float | None = None) -> None:
        self.manager, self._patience_s = manager, patience_s

    @property
    def bound(self) -> int:
        """The manager's bound, which is guaranteed."""
        return self.manager.bound

    @property
    def room(self) -> int:
        """The entries of all buffers."""
        return self.manager.capacity

    def tentative(self) -> BufferTentative:
        """A copy to plan with."""
        return BufferTentative(self.manager.fork())

    def start(self, group: int, version: int) -> None:
        """Reserve an entry for a group.

        Raises:
            StalenessError: see `StalenessManager.reserve`.
        """
        self.manager.reserve(group, version)

    def complete(self, group: int) -> None:
        """Occupy an entry with a complete group. Call `surplus` after each.

        Raises:
            StalenessError: see `StalenessManager.occupy`.
        """
        self.manager.occupy(group)

    def drop(self, group: int) -> None:
        """Abort a group in flight, or filter a complete one."""
        kind = self.manager.occupied(group)
        if kind is True:
            self.manager.filter(group)
        elif kind is False:
            self.manager.abort(group)

    def surplus(self) -> Sequence[int]:
        """Reserved entries of ready buffers."""
        return self.manager.surplus()

    def waits_s(self) -> float | None:
        """Seconds that training waits for delayed groups."""
        return self._patience_s

    def delayed(self) -> Sequence[int]:
        """Reserved entries of the earliest buffer whose places occupied ones of later buffers could take."""
        return self.manager.delayed()

    def expired(self) -> Sequence[int]:
        """Always empty: no complete group can become too old."""
        return ()

    def ready(self) -> bool:
        """Whether the earliest buffer is ready."""
        return self.manager.ready()

    def trainable(self) -> Sequence[int]:
        """Occupied entries of the earliest buffer, which no longer move."""
        return [entry.key for entry in self.manager.entries(self.manager.version) if entry.occupied]

    def consume(self, candidates: Sequence[Candidate], sampler: Sampler) -> Sequence[int]:
        """The groups of the earliest buffer. They must be consumed now, so the sampler says in which order only.

        Raises:
            NotReadyError: the buffer is not ready.
            SamplerError: one of its groups is not among the candidates, or the sampler picks others.
        """
        if self.manager.ready():
            due = {entry.key for entry in self.manager.entries(self.manager.version) if entry.occupied}
            batch = in_order(due, candidates, sampler, f"buffer {self.manager.version}; {self.manager.describe()}")
            self.manager.consume()
            return batch
        return self.manager.consume()

    def reset(self, version: int, started: Mapping[int, tuple[int, bool]]) -> Sequence[int]:
        return self.manager.reset(version, [Entry(key, at, complete) for key, (at, complete) in started.items()])

    def state(self) -> dict[str, Any]:
        return self.manager.to_state()
