"""The shared part of admissions without buffers: a ledger of open groups, and planning over their number."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass

from tailrace.contracts import AdmissionGate, Candidate, Sampler
from tailrace.staleness.errors import (
    DuplicateError,
    NotReadyError,
    SamplerError,
    StalenessBoundExceeded,
    UnknownEntryError,
    VersionError,
    whole,
)


@dataclass(slots=True)
class Open:
    """A group that was started and neither consumed nor dropped."""

    version: int
    complete: bool = False


class OpenGroups:
    """Open groups in order of their start, and the trainer's version.

    Args:
        name: the admission's name, for error messages.
        batch_groups: groups in a batch.
    """

    def __init__(self, name: str, batch_groups: int) -> None:
        self.name = name
        self.batch_groups = batch_groups
        self.version = 0
        self.groups: dict[int, Open] = {}
        self.completed = 0  # complete groups
        self.complete_at: Counter[int] = Counter()  # complete groups by version

    def start(self, group: int, version: int, allowed: bool) -> None:
        """Open a group.

        Raises:
            VersionError: the version is negative or newer than the trainer's.
            DuplicateError: the group is open already.
            StalenessBoundExceeded: `allowed` is False.
        """
        check_start(group, version, self.version, self.groups, self.describe)
        if not allowed:
            raise StalenessBoundExceeded(
                f"group {group} at version {version}: found no room, expected a start that `allows` permits; {self.describe()}"
            )
        self.groups[group] = Open(version)

    def complete(self, group: int) -> None:
        """Mark a group as complete.

        Raises:
            UnknownEntryError: the group is not open, or is complete already.
        """
        known = self.groups.get(group)
        if known is None or known.complete:
            found = "it complete already" if known else "no such group"
            raise UnknownEntryError(
                f"cannot complete group {group}: found {found}, expected one in flight; {self.describe()}"
            )
        known.complete = True
        self.completed += 1
        self.complete_at[known.version] += 1

    def drop(self, group: int) -> None:
        """Forget a group, open or not."""
        known = self.groups.pop(group, None)
        if known is not None and known.complete:
            self.completed -= 1
            self.complete_at[known.version] -= 1

    def take(self, batch: Sequence[int]) -> Sequence[int]:
        """Consume groups; the version rises by one."""
        for group in batch:
            self.drop(group)
        self.version += 1
        self.complete_at = +self.complete_at
        return batch

    def begin(self, version: int) -> None:
        """Forget every group and set the trainer's version.

        Raises:
            LimitError: the version is not a whole number of at least 0.
        """
        self.version = whole("version", version)
        self.groups = {}
        self.completed = 0
        self.complete_at = Counter()

    def restore(self, group: int, version: int, complete: bool) -> None:
        """Add a group that was started before a crash or reset."""
        self.groups[group] = Open(version, complete)
        self.completed += complete
        self.complete_at[version] += complete

    def offered(self, candidates: Sequence[Candidate]) -> None:
        """Check the candidates that the trainer was offered.

        Raises:
            SamplerError: a candidate is not a complete group of this ledger.
        """
        for candidate in candidates:
            known = self.groups.get(candidate.key)
            if known is None or not known.complete:
                raise SamplerError(
                    f"found candidate {candidate.key}, which is {'in flight' if known else 'not open'}, expected only "
                    f"complete groups; {self.describe()}"
                )

    def require(self, ready: bool) -> None:
        """Check that a batch may be consumed.

        Raises:
            NotReadyError: `ready` is False.
        """
        if not ready:
            raise NotReadyError(f"found no complete batch, expected {self.batch_groups} groups; {self.describe()}")

    def picked(self, chosen: Sequence[int], candidates: Sequence[Candidate]) -> list[int]:
        """Check a sampler's choice.

        Raises:
            SamplerError: the choice is not one batch of different candidates.
        """
        batch = list(chosen)
        if not len(batch) == len(set(batch)) == self.batch_groups or not set(batch) <= {
            candidate.key for candidate in candidates
        }:
            raise SamplerError(
                f"the sampler chose {batch!r:.120}, expected {self.batch_groups} different groups of the candidates; "
                f"{self.describe()}"
            )
        return batch

    def plain(self) -> dict[str, object]:
        """The whole state as plain data."""
        return {
            "version": self.version,
            "groups": [[group, known.version, known.complete] for group, known in self.groups.items()],
        }

    def describe(self) -> str:
        """The state in one line."""
        return (
            f"{self.name}: trainer at version {self.version}, {len(self.groups)} groups open, {self.completed} of them "
            f"complete, {self.batch_groups} in a batch"
        )


def check_start(group: int, version: int, newest: int, known: Container[int], where: Callable[[], str]) -> None:
    """Check that a group may start at a version.

    Args:
        group: the group.
        version: the version it starts at.
        newest: the trainer's version.
        known: groups that are open.
        where: the state in one line, for error messages.

    Raises:
        VersionError: the version is negative or newer than the trainer's.
        DuplicateError: the group is known.
    """
    if not 0 <= version <= newest:
        raise VersionError(
            f"cannot start group {group}: found version {version}, expected 0 to the trainer's {newest}; {where()}"
        )
    if group in known:
        raise DuplicateError(f"cannot start group {group}: found it open, expected a new one; {where()}")


def in_order(due: Set[int], candidates: Sequence[Candidate], sampler: Sampler, what: str) -> list[int]:
    """The groups that are due, in the sampler's order.

    Args:
        due: groups that must be trained on now.
        candidates: complete groups, these among them.
        sampler: orders them.
        what: is the batch, for a person.

    Raises:
        SamplerError: a group is not among the candidates, or the sampler picks others.
    """
    batch = [candidate for candidate in candidates if candidate.key in due]
    picked = list(sampler.pick(batch, len(batch)))
    if len(picked) != len(due) or set(picked) != due:
        raise SamplerError(f"found {picked!r:.120} to train on, expected {sorted(due)!r:.120}, the whole {what}")
    return picked


class CountedTentative:
    """A `TentativeAdmission` for gates that decide by a version and the number of open groups.

    Args:
        ledger: the gate's ledger; it must not change while this object is in use.
        admits: called with a version and a number of open groups: whether one more group may start.
        taken: versions of the groups that were taken so far.
    """

    __slots__ = ("_admits", "_ledger", "_taken")

    def __init__(
        self, ledger: OpenGroups, admits: Callable[[int, int], bool], taken: Mapping[int, int] | None = None
    ) -> None:
        self._ledger = ledger
        self._admits = admits
        self._taken = dict(taken or {})

    def allows(self, version: int) -> bool:
        """Whether one more group may start at a version."""
        return 0 <= version <= self._ledger.version and self._admits(
            version, len(self._ledger.groups) + len(self._taken)
        )

    def take(self, group: int, version: int) -> None:
        """Count a group as started.

        Raises:
            StalenessError: as `start` of the gate would raise.
        """
        ledger = self._ledger
        check_start(group, version, ledger.version, ledger.groups, ledger.describe)
        check_start(group, version, ledger.version, self._taken, ledger.describe)
        if not self.allows(version):
            raise StalenessBoundExceeded(
                f"group {group} at version {version}: found no room after {len(self._taken)} starts tried, expected a start "
                f"that `allows` permits; "
                f"{ledger.describe()}"
            )
        self._taken[group] = version

    def fork(self) -> CountedTentative:
        """An independent copy."""
        return CountedTentative(self._ledger, self._admits, self._taken)


class CountedGate(AdmissionGate):
    """The shared part of gates over a ledger: a group may start if `_admits` says so, and no group is surplus.

    Args:
        name: the admission's name.
        batch_groups: groups in a batch.
    """

    def __init__(self, name: str, batch_groups: int) -> None:
        self._batch = whole("batch_groups", batch_groups, least=1)
        self._ledger = OpenGroups(name, batch_groups)

    @abstractmethod
    def _admits(self, version: int, count: int) -> bool:
        """Whether one more group may start at a version when `count` groups are open."""

    def tentative(self) -> CountedTentative:
        """A copy to plan with."""
        return CountedTentative(self._ledger, self._admits)

    def start(self, group: int, version: int) -> None:
        """Open a group.

        Raises:
            StalenessError: see `OpenGroups.start`.
        """
        self._ledger.start(group, version, self._admits(version, len(self._ledger.groups)))

    def complete(self, group: int) -> None:
        """Mark a group as complete.

        Raises:
            UnknownEntryError: the group is not in flight.
        """
        self._ledger.complete(group)

    def drop(self, group: int) -> None:
        """Forget a group."""
        self._ledger.drop(group)

    def surplus(self) -> Sequence[int]:
        """Always empty: no more groups start than batches need."""
        return ()
