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
        self._handed: dict[int, int] = {}
        self._shown: dict[int, int] = {}
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

    def stages(self, version: int) -> None:
        """The trainer hands its weights over as a version; one that it did hand over is sent again from the copy."""
        if version != self._staged:
            self._staged = version
            self._handed[version] = self._held

    def shows(self, version: int) -> None:
        """A version that was handed over may be seen from now on. One that nobody has seen may have been other weights.

        Raises:
            InvariantError: the version was other weights before.
        """
        shown = self._handed[version]
        if self._shown.setdefault(version, shown) != shown:
            raise InvariantError(
                WEIGHTS,
                f"version {version} is published with weights {shown}, but it has been weights {self._shown[version]}",
            )
