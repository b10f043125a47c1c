"""What admits samples in verl's rollouter and puts them into its queue in order: the gate, without verl itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from tailrace.staleness.errors import LimitError, VersionError
from tailrace.staleness.manager import StalenessManager

Name = TypeVar("Name", bound=Hashable)


class SampleGate(Generic[Name]):
    """Which samples may start, and in which order complete ones go to a queue from which the trainer takes them as they come.

    The trainer trains on each `batch_size` samples of the queue with the next version of its weights. So what is handed over
    belongs to the earliest buffer of a `StalenessManager`: no sample is trained on more than `bound` versions after the one
    that it started with, in whatever order samples complete.

    Args:
        bound: most versions by which the trainer may be ahead of a sample's weights, 0 or more.
        batch_size: samples that are trained on between two updates of the rollout's weights, 1 or more.
        version: the trainer's version, which is that of the rollout's weights, too.

    Raises:
        LimitError: a value is out of its range.
    """

    def __init__(self, bound: int, batch_size: int, version: int = 0) -> None:
        self._manager: StalenessManager[Name] = StalenessManager(bound, batch_size, version)
        self._weights = version
        self._started: dict[Name, int] = {}
        self._handed: set[Name] = set()  # of the earliest buffer

    @property
    def weights(self) -> int:
        """The version of the rollout's weights."""
        return self._weights

    def may_start(self) -> bool:
        """Whether one more sample may start now. Changes nothing."""
        return self._manager.can_reserve(self._weights)

    def start(self, sample: Name) -> None:
        """Note that a sample starts, with the weights of now.

        Raises:
            StalenessBoundExceeded: it may not start.
            DuplicateError: it has started already.
        """
        self._manager.reserve(sample, self._weights)
        self._started[sample] = self._weights

    def complete(self, sample: Name, oldest: int | None = None) -> list[Name]:
        """Note that a sample is complete.

        Args:
            oldest: the oldest version that generated a token of it, as its engine says; None: it does not say.

        Returns:
            The samples to put into the queue now, in this order.

        Raises:
            VersionError: an engine generated it with weights older than those that it was started with.
            UnknownEntryError: it has not started, or was complete already.
        """
        if oldest is not None and oldest < self._started.get(sample, oldest):
            raise VersionError(
                f"found tokens of version {oldest} in sample {sample!r}, expected {self._started[sample]}, at which it "
                "was started, or newer"
            )
        self._manager.occupy(sample)
        del self._started[sample]
        return self._due()

    def lose(self, sample: Name) -> list[Name]:
        """Note that a sample that has started will not be complete.

        Returns:
            As `complete`: complete samples may take its place.

        Raises:
            UnknownEntryError: it has not started, or is complete.
        """
        self._manager.abort(sample)
        del self._started[sample]
        return self._due()

    def updated(self) -> None:
        """Note that the rollout has the next version of the weights.

        An update that no batch came before changes no version: verl repeats the last one at its end.
        """
        self._weights = min(self._weights + 1, self._manager.version)

    def describe(self) -> str:
        """The state in one line, for a log."""
        return f"weights at version {self._weights}; {self._manager.describe()}"

    def _due(self) -> list[Name]:
        due: list[Name] = []
        while True:
            fresh = [
                e.key for e in self._manager.entries(self._manager.version) if e.occupied and e.key not in self._handed
            ]
            due += fresh
            self._handed.update(fresh)
            if not self._manager.ready():
                return due
            self._handed.difference_update(self._manager.consume())


def whole_bound(threshold: float) -> int:
    """verl's `staleness_threshold` as a bound in versions.

    Raises:
        LimitError: it is no whole number of at least 0.
    """
    if threshold < 0 or threshold != int(threshold):
        raise LimitError(
            f"found async_training.staleness_threshold = {threshold}, expected a whole number of versions, such as 1"
        )
    return int(threshold)
