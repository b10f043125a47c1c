"""Checks that a version always names one set of weights: two replicas on the same version have the same weights."""

from __future__ import annotations

from tailrace.fuzz.checks.data_plane import WEIGHTS
from tailrace.fuzz.errors import InvariantError


class Lineage:
    """Which weights every version and checkpoint is. Weights are numbered: each step makes new ones."""

    def __init__(self) -> None:
        self._made = 0
        self._held = 0
        self._saved = {0: 0}
        self._published: dict[int, int] = {}
        self._staged: int | None = None

    def stepped(self) -> None:
        """The trainer holds new weights."""
        self._made += 1
        self._held = self._made

    def saves(self, version: int) -> None:
        """The trainer copies its weights for a checkpoint."""
        self._saved[version] = self._held

    def loads(self, version: int) -> None:
        """The trainer starts from a checkpoint."""
        self._held = self._saved[version]
        self._staged = None

    def publishes(self, version: int) -> None:
        """The trainer hands its weights over as a version; one that it did hand over is sent again from the copy.

        Raises:
            InvariantError: the version was other weights before.
        """
        if version == self._staged:
            return
        self._staged = version
        if self._published.setdefault(version, self._held) != self._held:
            raise InvariantError(
                WEIGHTS,
                f"version {version} is published with weights {self._held}, but it has been weights "
                f"{self._published[version]}",
            )
