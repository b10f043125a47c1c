"""Which memory a publisher copies the next version into: the relay's, or its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tailrace.paramserver.clients.loans import Loans
from tailrace.paramserver.clients.staged import Staged, StagedState
from tailrace.paramserver.clients.staging import measure
from tailrace.paramserver.machine.protocol import Condition, HostInterface

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
