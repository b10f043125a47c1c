"""The staging buffers of a publisher: which one takes the next version, and which is pushed next.

A version is copied into memory that the relay on this host lends, or into the publisher's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tailrace.paramserver.clients.loans import Loans
from tailrace.paramserver.clients.publish_outcomes import PublishOutcomes
from tailrace.paramserver.clients.staging import Staged, StagedState, measure
from tailrace.paramserver.errors import PublishTimeout, RelayUnreachable, VersionSuperseded
from tailrace.paramserver.machine.protocol import Condition, HostInterface
from tailrace.paramserver.manifest import Manifest

_ANSWER_S = 0.5  # for the relay to say whether it lends, when nothing is ready
_FRESH_BYTES_PER_S = 1e8  # at which a relay makes new memory, page by page and zeroed, at the least


class Borrowing:
    """Chooses memory for versions.

    Args:
        staged: all staging buffers of the publisher.
        changed: guards them.
        least_bytes: a smaller version is copied into memory of our own; None: each is.
        token: shared secret.
        machine: the machine that it runs on.
    """

    def __init__(
        self, staged: Sequence[Staged], changed: Condition, least_bytes: int | None, token: str, machine: HostInterface
    ) -> None:
        self._all, self._changed, self._least_bytes = staged, changed, least_bytes
        self._loans = Loans(token, machine)
        self.last_bytes = 0  # size of the last version: a guess at the next one's

    def prepare(self, address: str, nbytes: int, timeout_s: float, *, recycled: bool = False) -> None:
        """Have memory ready for a version of this size, if the relay at this address has some to lend."""
        if self._least_bytes is not None and nbytes >= max(1, self._least_bytes):
            made_s = nbytes / _FRESH_BYTES_PER_S
            self._loans.fetch(address, nbytes, timeout_s, made_s, recycled=recycled, patient=True)

    def provide(self, staged: Staged, weights: Iterable[tuple[str, Any]], address: str) -> None:
        """Choose memory for weights that are about to be copied.

        Raises:
            ManifestInvalid: they cannot be published.
        """
        nbytes = measure(weights)
        known = self.last_bytes if nbytes is None else nbytes
        borrowed = staged.memory.borrowed
        if borrowed is not None and not borrowed.offered and borrowed.nonce == self._loans.nonce:
            if borrowed.segment.size >= known:
                return  # of a version that was superseded before it was pushed
            self._loans.put_back(borrowed)
        staged.memory.use(None)
        if self._least_bytes is None or known < max(1, self._least_bytes):
            return
        if (borrowed := self._loans.take(known)) is None:
            made_s = known / _FRESH_BYTES_PER_S
            self._loans.fetch(address, known, _ANSWER_S, made_s, recycled=False, patient=False)
            borrowed = self._loans.take(known)
        if borrowed is None:
            return
        with self._changed:
            for other in self._all:
                if other.memory.borrowed is None or other.memory.borrowed.segment is not borrowed.segment:
                    continue
                if other.state in (
                    StagedState.PUSHING,
                    StagedState.WAITING,
                ):  # to another master, from memory that came back
                    self._loans.put_back(borrowed)
                    return
                if other is not staged:
                    other.state, other.manifest = StagedState.EMPTY, None
                    other.memory.use(None)
        staged.memory.use(borrowed)

    def close(self) -> None:
        """Give back memory that was not offered."""
        self._loans.close()


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
        self._patience_s, self._last_stamp = patience_s, -1
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
            stamp = max([self._machine.time_ns(), *(value + 1 for value in (*others, self._last_stamp))])
            if staged.pinned is not None:
                stamp = staged.pinned
            staged.manifest = None if manifest is None else dataclasses.replace(manifest, stamp=stamp)
            if manifest is not None:
                self._last_stamp = max(self._last_stamp, stamp)
                # What became of an earlier publication of this number meanwhile says nothing of this one.
                self._outcomes.forget(manifest.version)
            self._changed.notify_all()

    def supersede(self, staged: Staged, by: int) -> None:
        """Note that a version will never be visible, since a newer one replaces it. Call it with the condition held."""
        error = VersionSuperseded(f"version {staged.version} was superseded by version {by} before it was pushed")
        self.superseded.append(staged.version)
        self._outcomes.record(staged.version, error, again=staged.version == by)
        staged.state, staged.manifest = StagedState.EMPTY, None

    def next(self) -> Staged | None:
        """The newest of those that wait: beside a new version an older one may, which was revealed while it was pushed."""
        waiting = (staged for staged in self._staged if staged.state is StagedState.WAITING)
        return max(waiting, key=lambda staged: staged.order, default=None)
