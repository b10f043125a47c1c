"""The staging buffers of a publisher: which one takes the next version, and which version is pushed next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tailrace.paramserver.clients.outcomes import PublishOutcomes
from tailrace.paramserver.clients.staged import Staged, StagedState
from tailrace.paramserver.errors import PublishTimeout, RelayUnreachable, VersionSuperseded
from tailrace.paramserver.machine.protocol import Condition, HostInterface
from tailrace.paramserver.manifest import Manifest


class Buffers:
    """Staged versions, and those that a newer one superseded.

    Args:
        staged: the buffers.
        changed: guards them.
        outcomes: is told of superseded versions.
        machine: its clock.
        patience_s: how long a new version may wait for the only buffer.
    """

    def __init__(
        self,
        staged: Sequence[Staged],
        changed: Condition,
        outcomes: PublishOutcomes,
        machine: HostInterface,
        *,
        patience_s: float,
    ) -> None:
        self._staged, self._changed, self._outcomes, self._machine = staged, changed, outcomes, machine
        self._patience_s = patience_s
        self.superseded: list[int] = []
        self.claiming = False  # a new version waits until the one that is pushed is sent

    def claim(self, version: int, closed: Callable[[], bool]) -> Staged:
        """The buffer for a new version: an unused one, else the older of those not being pushed.

        Raises:
            RelayUnreachable: the publisher is closed.
            PublishTimeout: the only buffer is being pushed.
        """
        deadline = self._machine.now() + self._patience_s
        with self._changed:
            try:
                while not (free := [staged for staged in self._staged if staged.state is not StagedState.PUSHING]):
                    self.claiming = True
                    if (left_s := deadline - self._machine.now()) <= 0:
                        raise PublishTimeout(f"version {version} waited {self._patience_s:.3g} s for the one before it")
                    self._changed.wait(left_s)
            finally:
                self.claiming = False
            if closed():
                raise RelayUnreachable("the publisher is closed")
            staged = min(free, key=lambda staged: (staged.state is not StagedState.EMPTY, staged.order))
            if staged.state in (StagedState.WAITING, StagedState.SENT):
                self.supersede(staged, version)
            staged.state, staged.manifest = StagedState.FILLING, None
            staged.checksums.clear()
            staged.sent.clear()
            self._outcomes.forget(version)
            return staged

    def fill(self, staged: Staged, state: StagedState, manifest: Manifest | None) -> None:
        """A version was copied, or could not be."""
        with self._changed:
            if state is StagedState.WAITING and manifest is not None and (older := self.next()) is not None:
                self.supersede(older, manifest.version)
            staged.state = state
            # Stamps order publications; a clock that was set back must not reorder ours.
            others = [other.manifest.stamp for other in self._staged if other is not staged and other.manifest]
            stamp = max([self._machine.time_ns(), *(value + 1 for value in others)])
            if staged.pinned is not None:
                stamp = staged.pinned
            staged.manifest = None if manifest is None else dataclasses.replace(manifest, stamp=stamp)
            self._changed.notify_all()

    def supersede(self, staged: Staged, by: int) -> None:
        """Note that a version will never be visible, since a newer one replaces it. Call it with the condition held."""
        error = VersionSuperseded(f"version {staged.version} was superseded by version {by} before it was pushed")
        self.superseded.append(staged.version)
        self._outcomes.record(staged.version, error)
        staged.state, staged.manifest = StagedState.EMPTY, None

    def next(self) -> Staged | None:
        """The newest of those that wait: beside a new version an older one may, which was revealed while it was pushed."""
        waiting = (staged for staged in self._staged if staged.state is StagedState.WAITING)
        return max(waiting, key=lambda staged: staged.order, default=None)
