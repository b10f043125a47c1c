"""Axis admission: a strict bound by staleness buffers (StaleFlow). Plugin ``bounded``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import Candidate, Sampler
from tailrace.staleness.entry import Entry
from tailrace.staleness.errors import SamplerError
from tailrace.staleness.limits import whole
from tailrace.staleness.manager import StalenessManager
from tailrace.staleness.tentative import Tentative


@dataclass(frozen=True, slots=True)
class Bounded:
    """A group starts only if a batch that is consumed in time has a place for it, whatever completes when.

    Guarantees: every group that is consumed started at most `bound` versions before the trainer's version then; nothing
    complete is thrown away for its age; at most (bound + 1) * (batch + surplus) groups are open. Short groups do not wait for
    long ones that may be trained on later.

    Does not guarantee: progress if a group in flight never ends: the batch that it belongs to waits for it, until it is
    dropped.

    Args:
        bound: eta of StaleFlow, 0 or more.
        surplus: groups started for each batch beyond those that it needs; what is late is aborted (section 4.3). Short
            groups are then trained on more often than long ones.

    Raises:
        LimitError: a value is out of its range.
    """

    bound: int = 1
    surplus: int = 0

    def __post_init__(self) -> None:
        whole("bound", self.bound)
        whole("surplus", self.surplus)

    def gate(self, batch_groups: int) -> BoundedGate:
        """With nothing started and the trainer at version 0.

        Raises:
            LimitError: `batch_groups` is below 1.
        """
        return BoundedGate(StalenessManager(self.bound, batch_groups, 0, self.surplus))


class BufferTentative:
    """A fork of the staleness manager, as planners know admissions."""

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


class BoundedGate:
    """The staleness manager at work. See `AdmissionGate`."""

    def __init__(self, manager: StalenessManager[int]) -> None:
        self.manager = manager

    @property
    def bound(self) -> int:
        """Guaranteed."""
        return self.manager.bound

    @property
    def room(self) -> int:
        """Entries of all buffers."""
        return self.manager.capacity

    def tentative(self) -> BufferTentative:
        """A view to plan with."""
        return BufferTentative(self.manager.fork())

    def start(self, group: int, version: int) -> None:
        """Reserve.

        Raises:
            StalenessError: see `StalenessManager.reserve`.
        """
        self.manager.reserve(group, version)

    def complete(self, group: int) -> None:
        """Occupy. Ask `surplus` after each.

        Raises:
            StalenessError: see `StalenessManager.occupy`.
        """
        self.manager.occupy(group)

    def drop(self, group: int) -> None:
        """Abort or filter."""
        kind = self.manager.occupied(group)
        if kind is True:
            self.manager.filter(group)
        elif kind is False:
            self.manager.abort(group)

    def surplus(self) -> Sequence[int]:
        """Reserved entries of ready buffers."""
        return self.manager.surplus()

    def expired(self) -> Sequence[int]:
        """None: nothing complete can grow too old."""
        return ()

    def ready(self) -> bool:
        """Whether the earliest buffer is ready."""
        return self.manager.ready()

    def trainable(self) -> Sequence[int]:
        """Occupied entries of the earliest buffer: these move nowhere any more."""
        return [entry.key for entry in self.manager.entries(self.manager.version) if entry.occupied]

    def consume(self, candidates: Sequence[Candidate], sampler: Sampler) -> Sequence[int]:  # noqa: ARG002 - no choice left
        """The earliest buffer, in order of completion. It is what must be consumed now, so the sampler is not asked.

        Raises:
            NotReadyError: it is not ready.
            SamplerError: one of its groups is not among the candidates.
        """
        if self.manager.ready():
            due = {entry.key for entry in self.manager.entries(self.manager.version) if entry.occupied}
            batch = [candidate.key for candidate in candidates if candidate.key in due]
            if len(batch) != len(due):
                raise SamplerError(
                    f"found candidates without {sorted(due.difference(batch))!r:.120}, expected the whole buffer "
                    f"{self.manager.version}; {self.manager.describe()}"
                )
            self.manager.consume()
            return batch
        return self.manager.consume()

    def reset(self, version: int, started: Mapping[int, tuple[int, bool]]) -> Sequence[int]:
        """See `StalenessManager.reset`."""
        return self.manager.reset(version, [Entry(key, at, complete) for key, (at, complete) in started.items()])

    def state(self) -> dict[str, Any]:
        """See `StalenessManager.to_state`."""
        return self.manager.to_state()
