"""The weights that a replica offers to others: a relay process of its own, outside the tree (RobustRL, section 5.2.1).

    other replicas, relays ──fetch──► its relay ──shared memory──► the engine
                                          └──────pull──────► one other replica at a time

It takes only versions that are visible at their source, checks each chunk against the trainer's checksum, and shows a version
once all of it is here. The controller names the replica as a source once its engine serves the version.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.paramserver import RelayProcess, fetch
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.runtime.errors import RoleError

SLOTS = 2
"""Versions that a replica's relay holds: it serves one while the next arrives."""


class OfferedWeights:
    """A replica's own relay, which ends with its process.

    Args:
        name: a name that is unique on the machine. A relay of this name that still lives is the replica's last incarnation's.
        token: shared secret of the run's peers.
        transfer: the transport and codec, and the address to listen on.
    """

    def __init__(self, name: str, token: str, transfer: WeightTransfer) -> None:
        sending = transfer.sending
        self._token = token
        self._process = RelayProcess.start(
            f"{name}-weights",
            host=transfer.address,
            token=token,
            replace=True,
            slots=SLOTS,
            pullers=1,
            transports=sending.transports,
            codecs=sending.codecs,
            always_encode=sending.always_encode,
        )
        self.address = self._process.address

    def fetch(self, version: int, sources: Sequence[str], timeout_s: float, *, patient: bool) -> str:
        """Have a version here. Returns the source with which it was complete; "" if it was here already.

        Args:
            patient: whether to wait for a source that may still get it.

        Raises:
            ParamServerError: see `tailrace.paramserver.fetch`.
        """
        return fetch(self.address, version, sources, token=self._token, timeout_s=timeout_s, patient=patient)

    @property
    def pid(self) -> int:
        """Process id of the relay."""
        return self._process.pid

    def check(self) -> None:
        """Raise unless the process lives.

        Raises:
            RoleError: it has ended.
        """
        if not self._process.alive():
            raise RoleError(f"the relay process {self._process.pid} of this replica is gone")

    def close(self) -> None:
        """End the process and free its shared memory."""
        self._process.close()
