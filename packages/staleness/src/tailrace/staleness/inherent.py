"""Axis admission: staleness follows from the speeds of generation and training (Laminar, section 6). Plugin ``inherent``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tailrace.contracts import AdmissionPolicy, Candidate, Sampler, Tried
from tailrace.staleness.counting import CountedGate
from tailrace.staleness.errors import whole


@dataclass(frozen=True, slots=True)
class Inherent(AdmissionPolicy):
    """A group may start at any time, and a batch is trainable as soon as enough groups are complete.

    Guarantees: without a bound, nothing; staleness follows from generation latency and the trainer's speed. With a bound, no
    consumed group is older than it: older complete groups are refused at consumption.
    Does not guarantee: with a bound, that all generated groups are used. Refused work is lost, long trajectories first, which
    shifts the lengths that are trained on. `Bounded` avoids this: it does not start a group that it could not use.

    Args:
        bound: most versions by which a group may be behind the trainer at consumption; None for no limit.

    Raises:
        LimitError: the bound is below 0.
    """

    bound: Annotated[int | None, Tried((None, None, 0, 1, 2, 3))] = None

    def __post_init__(self) -> None:
        if self.bound is not None:
            whole("bound", self.bound)

    def gate(self, batch_groups: int) -> SampledGate:
        """A gate with no group started and the trainer at version 0.

        Raises:
            LimitError: `batch_groups` is below 1.
        """
        return SampledGate("inherent", batch_groups, max_age=self.bound)


class SampledGate(CountedGate):
    """An `AdmissionGate` whose batch is trainable as soon as enough groups are complete.

    Args:
        name: the admission's name.
        batch_groups: groups in a batch.
        cap: most groups that may be open at once; None for no limit.
        max_age: most versions by which a complete group may be behind the trainer at consumption; None for no limit.
    """

    def __init__(self, name: str, batch_groups: int, *, cap: int | None = None, max_age: int | None = None) -> None:
        self._cap = cap
        self._max_age = max_age
        super().__init__(name, batch_groups)

    @property
    def bound(self) -> int | None:
        """`max_age`; None without it, since a cap bounds no group's staleness."""
        return self._max_age

    @property
    def room(self) -> int | None:
        """The cap."""
        return self._cap

    def _fresh(self, version: int) -> bool:
        return self._max_age is None or self._ledger.version - version <= self._max_age

    def _admits(self, version: int, count: int) -> bool:
        return (self._cap is None or count < self._cap) and self._fresh(version)

    def expired(self) -> Sequence[int]:
        """Complete groups older than `max_age`."""
        if self._max_age is None or all(
            self._fresh(version) for version, count in self._ledger.complete_at.items() if count
        ):
            return ()
        return [
            group for group, known in self._ledger.groups.items() if known.complete and not self._fresh(known.version)
        ]

    def ready(self) -> bool:
        """Whether enough groups for a batch are complete and not expired."""
        if self._max_age is None:
            return self._ledger.completed >= self._batch
        count = sum(count for version, count in self._ledger.complete_at.items() if self._fresh(version))
        return count >= self._batch

    def trainable(self) -> Sequence[int]:
        """Complete groups that are not expired; they cannot expire before the next version."""
        groups = self._ledger.groups.items()
        return [group for group, known in groups if known.complete and self._fresh(known.version)]

    def consume(self, candidates: Sequence[Candidate], sampler: Sampler) -> Sequence[int]:
        """The groups that the sampler chooses among the candidates that are not expired.

        Raises:
            NotReadyError: too few groups are complete.
            SamplerError: the sampler's choice is not a batch, or a candidate is not complete.
        """
        self._ledger.require(self.ready())
        self._ledger.offered(candidates)
        fresh = [candidate for candidate in candidates if self._fresh(self._ledger.groups[candidate.key].version)]
        return self._ledger.take(self._ledger.picked(sampler.pick(fresh, self._batch), fresh))

    def reset(self, version: int, started: Mapping[int, tuple[int, bool]]) -> Sequence[int]:
        """Refuse groups of versions newer than the trainer's and those older than `max_age`; the cap refuses none."""
        self._ledger.begin(version)
        refused = []
        for group, (at, complete) in started.items():
            if 0 <= at <= version and self._fresh(at):
                self._ledger.restore(group, at, complete)
            else:
                refused.append(group)
        return refused

    def state(self) -> dict[str, Any]:
        """The open groups in order of their start, as plain data."""
        return {
            "admission": self._ledger.name,
            "batch_groups": self._batch,
            "cap": self._cap,
            "max_age": self._max_age,
            **self._ledger.plain(),
        }
